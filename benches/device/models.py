"""Models with random weights, in plain PyTorch, as packages: nothing has to travel but the script.

Their shapes are those of all-MiniLM-L6-v2 and ResNet-50, so their speed is too.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

SEED = 42
VOCABULARY, WIDTH, HEADS, LAYERS, INNER, LONGEST = 30522, 384, 12, 6, 1536, 512
TOKENS = 64
CLASSES = 1000
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.taken = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`[rows, tokens, 384]` to the same."""
        rows, tokens = x.size(0), x.size(1)
        parts = self.given(x).view(rows, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        heads = heads.transpose(1, 2).reshape(rows, tokens, WIDTH)
        x = self.first(x + self.taken(heads))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Token ids in, one normalized vector a row out. Id 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        # A parameter, not positions made on the way: a traced program must not name a device.
        self.places = nn.Parameter(torch.randn(LONGEST, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`[rows, tokens]` to `[rows, 384]`."""
        mask = ids != 0
        x = self.norm(self.words(ids) + self.places[: ids.size(1)])
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        weights = mask[:, :, None].to(x.dtype)
        mean = (x * weights).sum(1) / weights.sum(1).clamp(min=1)
        return functional.normalize(mean, dim=1)


class OfTexts(nn.Module):
    """The same with the arguments of the tokenizing transform."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask to vectors."""
        return self.encoder(ids * mask)


class Block(nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(given, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = stride == 1 and given == out
        self.aside = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A feature map to the next."""
        return functional.relu(self.path(x) + self.aside(x))


class ResNet(nn.Module):
    """ResNet-50: `[rows, 3, 224, 224]` to the best class and its score."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        stem.append(nn.MaxPool2d(3, 2, 1))
        blocks, given = [], 64
        for at, count in enumerate((3, 4, 6, 3)):
            for number in range(count):
                blocks.append(Block(given, 64 << at, 2 if at and not number else 1))
                given = 256 << at
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(2048, CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Class and score."""
        scores = self.head(self.body(x).mean((2, 3))).softmax(-1)
        best = scores.max(-1)
        return best.indices, best.values


class OfPixels(nn.Module):
    """The same of pixels as they lie in memory: what is prepared is not decoded, nor moved around."""

    def __init__(self, resnet: ResNet) -> None:
        super().__init__()
        self.resnet = resnet
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1) * 255)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[rows, 224, 224, 3]`, 0 to 255, to class and score."""
        return self.resnet((pixels.permute(0, 3, 1, 2) - self.mean) / self.deviation)


def spread(model: ResNet) -> None:
    """Moves and scales the head, so that classes differ and scores are neither 0 nor 1."""
    coarse = torch.rand(64, 3, 8, 8)
    images = functional.interpolate(coarse, 224, mode="bicubic").clamp(0, 1)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    features = model.body((images - mean) / deviation).mean((2, 3))
    middle, head = features.mean(0), model.head
    head.weight *= 2 / ((features - middle) @ head.weight.T).std()
    head.bias.copy_(-(head.weight @ middle))


@dataclass(frozen=True)
class Models:
    """The modules, on the CPU, and the folder of their packages."""

    encoder: Encoder
    resnet: ResNet
    pixels: OfPixels
    folder: Path


def make(folder: Path, tokenizer: Path | None) -> Models:
    """All packages."""
    torch.manual_seed(SEED)
    encoder, resnet = Encoder().eval().requires_grad_(False), ResNet()
    with torch.no_grad():
        # Statistics of batch norm that keep signals in bounds.
        resnet.train()(torch.randn(4, 3, 64, 64))
        spread(resnet.eval())
    resnet = resnet.requires_grad_(False).to(memory_format=torch.channels_last)
    ids = torch.randint(1, VOCABULARY, (2, TOKENS))
    write(folder / "encoder", torch.jit.trace(encoder, ids.int()), ENCODER)
    pixels = torch.randn(2, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    write(folder / "resnet", torch.jit.trace(resnet, pixels), RESNET)
    of_pixels = OfPixels(resnet).eval()
    write(folder / "pixels", torch.jit.trace(of_pixels, torch.rand(2, 224, 224, 3)), PIXELS)
    write(folder / "emulated", None, EMULATED)
    if tokenizer is not None:
        texts = torch.jit.trace(OfTexts(encoder), (ids, torch.ones_like(ids)))
        files = {"tokenizer.json": tokenizer.read_bytes()}
        write(folder / "texts", texts, TEXTS, files)
        write(folder / "exported", texts, TEXTS.replace(TEXT_BATCH, EXPORTED_BATCH), files)
        write(folder / "tokens", None, TOKENS_ONLY, files)
    return Models(encoder, resnet, of_pixels, folder)


def write(folder: Path, program: object, about: str, files: dict[str, bytes] | None = None) -> None:
    """A package."""
    folder.mkdir(parents=True)
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    if program is not None:
        program.save(str(folder / "model.pt"))
    hashes = [
        f'"{path.name}" = "{hashlib.sha256(path.read_bytes()).hexdigest()}"'
        for path in sorted(folder.iterdir())
    ]
    head = f'format = 1\nname = "{folder.name}"\nversion = "1"\n'
    (folder / "model.toml").write_text(head + about + "[files]\n" + "\n".join(hashes) + "\n")


VECTOR = f'[[output]]\nname = "embedding"\ntype = "FLOAT[{WIDTH}]"\n'
TORCH = '[runtime]\nkind = "torch"\nprogram = "model.pt"\n'
NEEDS = '[resources]\ncpus = 1\ngpus = 1\nmemory = "400 MiB"\ngpu_memory = "4 GiB"\n'
ENCODER = f"""
[[input]]
name = "ids"
type = "INT[{TOKENS}]"
{VECTOR}
[transform]
kind = "tensor"
{TORCH}{NEEDS}
[batch]
max_rows = 512
window_rows = 4096
"""
TEXT_BATCH = "[batch]\nmax_rows = 512\nmax_tokens = 16384\nwindow_rows = 16384\n"
TEXTS = f"""
[[input]]
name = "text"
type = "STRING"
{VECTOR}
[transform]
kind = "tokenize"
tokenizer = "tokenizer.json"
max_tokens = 256
pad_id = 0
arguments = ["input_ids", "attention_mask"]
{TORCH}{NEEDS}
{TEXT_BATCH}"""
# As `forebay model export` writes it.
EXPORTED_BATCH = "[batch]\nmax_rows = 64\nmax_tokens = 1024\nwindow_rows = 8192\n"
CLASS = '[[output]]\nname = "class"\ntype = "BIGINT"\n[[output]]\nname = "score"\ntype = "FLOAT"\n'
PIXELS = f"""
[[input]]
name = "pixels"
type = "FLOAT[{224 * 224 * 3}]"
shape = [224, 224, 3]
{CLASS}
[transform]
kind = "tensor"
{TORCH}{NEEDS}
[batch]
max_rows = 128
window_rows = 512
"""
RESNET = f"""
[[input]]
name = "image"
type = "BINARY"
{CLASS}
[transform]
kind = "image"
resize = 224
crop = 224
layout = "chw"
mean = {list(MEAN)}
std = {list(DEVIATION)}
{TORCH}{NEEDS}
[batch]
max_rows = 128
window_rows = 512
"""
EMULATED = """
[[input]]
name = "n"
type = "BIGINT"
[[output]]
name = "digest"
type = "BIGINT"
[transform]
kind = "tensor"
[runtime]
kind = "emulated"
service_ms = 1
memory_rows = 8
[resources]
cpus = 0
gpus = 0.5
memory = "1 MiB"
gpu_memory = "1 GiB"
[batch]
max_rows = 64
window_rows = 256
"""
# The work in front of a model of texts, and none in it.
TOKENS_ONLY = """
[[input]]
name = "text"
type = "STRING"
[[output]]
name = "digest"
type = "BIGINT"
[transform]
kind = "tokenize"
tokenizer = "tokenizer.json"
max_tokens = 256
pad_id = 0
arguments = ["input_ids", "attention_mask"]
[runtime]
kind = "emulated"
service_ms = 0
[resources]
cpus = 0
gpus = 1
memory = "1 MiB"
gpu_memory = "1 GiB"
[batch]
max_rows = 512
window_rows = 16384
"""
