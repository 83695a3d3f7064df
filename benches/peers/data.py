"""The inputs of all workloads, the same ones each time, in Parquet files and JPEGs.

Eight Parquet files each, so that every engine can read in parallel without a shuffle.
"""

import functools
import hashlib
import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engines import settings, work

SEED = 42
FILES = 8
COPIES = 0.15
WORDS = settings.ROOT / "sql-examples/data/wordnet.parquet"
CLASSES = 10
NO_FILES = "[files]\n"
SIZES = ((500, 375), (640, 480), (375, 500))


def make(workload: str, rows: int, folder: Path) -> Path:
    """The folder with the workload's data; made only if it is not there, or was made otherwise."""
    home = folder / f"{workload}-{rows}-{made_by()}"
    if not home.exists():
        partial = home.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        MAKERS[workload](np.random.default_rng(SEED), rows, partial)
        partial.rename(home)
    return home


@functools.cache
def made_by() -> str:
    """Of the sources that say how data and models are made."""
    sources = [Path(__file__), *(Path(module.__file__) for module in (settings, work))]
    sources += sorted((settings.ROOT / "python/forebay/export").glob("*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def make_texts(random: np.random.Generator, rows: int, folder: Path) -> None:
    """Texts, and the model for them."""
    write_texts(random, rows, folder)
    minilm(folder / "models")


def write_texts(random: np.random.Generator, rows: int, folder: Path) -> None:
    """Log-normal lengths; the last 15% of the rows are copies of others, before all are mixed."""
    words = vocabulary()
    unique = rows - int(rows * COPIES)
    lengths = random.lognormal(3.0, 0.7, unique).clip(3, 180).astype(int)
    texts = [" ".join(random.choice(words, length)) for length in lengths]
    texts += [texts[at] for at in random.integers(0, unique, rows - unique)]
    write(folder, {"text": [texts[at] for at in random.permutation(rows)]})


def make_documents(random: np.random.Generator, rows: int, folder: Path) -> None:
    """Texts of 1,000 words on average, log-normal too."""
    words = vocabulary()
    lengths = random.lognormal(6.7, 0.6, rows).clip(50, 8000).astype(int)
    write(folder, {"text": [" ".join(random.choice(words, length)) for length in lengths]})
    minilm(folder / "models")


def minilm(folder: Path) -> None:
    """all-MiniLM-L6-v2 as sentence-transformers exports it for its backends."""
    script = Path(__file__).with_name("export_backends.py")
    command = (settings.BACKENDS, script, settings.MINILM, folder)
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def make_images(random: np.random.Generator, rows: int, folder: Path) -> None:
    """JPEGs, and a ResNet-18 for them."""
    make_files(random, rows, folder)
    resnet(folder)


def make_pixels(random: np.random.Generator, rows: int, folder: Path) -> None:
    """JPEGs, and the emulated accelerator that takes their pixels."""
    make_files(random, rows, folder)
    takes_pixels(folder / "models/accelerator")


def make_files(random: np.random.Generator, rows: int, folder: Path) -> None:
    """JPEGs whose frequencies are those of photos."""
    from PIL import Image

    (folder / "images").mkdir()
    fields = [field(random, *size) for size in SIZES for _ in range(6)]
    for at in range(rows):
        base = fields[random.integers(len(fields))]
        # Another part of the same field, and another color, is another image.
        shifted = np.roll(base, tuple(random.integers(0, 375, 2)), (0, 1))
        tint = random.uniform(0.7, 1.3, 3) * 52 * shifted + random.uniform(90, 150, 3)
        image = Image.fromarray(tint.clip(0, 255).astype(np.uint8))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=int(random.choice([75, 85, 90])))
        (folder / f"images/{at:05}.jpg").write_bytes(data.getvalue())
    write(folder, {"path": sorted(str(path.name) for path in (folder / "images").iterdir())})


def field(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """`[height, width, 3]` noise of mean 0 and deviation 1."""
    y, x = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt(x * x + y * y)
    frequency[0, 0] = 1
    channels = []
    for _ in range(3):
        white = np.fft.rfft2(random.standard_normal((height, width)))
        noise = np.fft.irfft2(white / frequency**1.2, s=(height, width))
        channels.append(noise / noise.std())
    channels = [channels[0] + 0.35 * channel for channel in channels]
    return np.stack(channels, axis=-1) / np.std(channels)


def resnet(data: Path) -> None:
    """Random weights, with a head that tells these images apart, and the package of that."""
    import torch
    from torchvision import models

    folder = data / "models"
    folder.mkdir()
    torch.manual_seed(SEED)
    model = models.resnet18(num_classes=CLASSES).train()
    with torch.no_grad():
        batch = some_pixels(data / "images")
        model(batch)
        spread(model.eval(), batch)
    torch.save(model.state_dict(), folder / "resnet18.pth")
    names = {"input_names": ["pixels"], "output_names": ["logits"]}
    sizes = {"dynamic_axes": {"pixels": {0: "rows"}, "logits": {0: "rows"}}}
    options = {"dynamo": False, **names, **sizes}
    torch.onnx.export(model, (batch[:2],), folder / "resnet18.onnx", **options)
    labels = "\n".join(f"class {at}" for at in range(CLASSES))
    (folder / "labels.txt").write_text(f"{labels}\n")
    files = ("--weights", folder / "resnet18.pth", "--labels", folder / "labels.txt")
    request = ("--source", "torchvision/resnet18", "--images", "--output", folder / "resnet18")
    command = (settings.ROOT / "tools/python", "-m", "forebay.export", *request, *files)
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def some_pixels(folder: Path) -> object:
    """A normalized batch of the first images."""
    import torch

    pixels = work.recipe()
    files = sorted(folder.iterdir())[:64]
    batch = torch.from_numpy(np.stack([pixels(path.read_bytes()) for path in files]))
    mean, deviation = (torch.tensor(values) * 255 for values in (settings.MEAN, settings.DEVIATION))
    return ((batch - mean) / deviation).permute(0, 3, 1, 2).contiguous()


def spread(model: object, batch: object) -> None:
    """Moves and scales the head, so that labels differ and scores are neither 0 nor 1. Untrained
    weights give all images one label, and equal labels would prove nothing."""
    import torch

    body = torch.nn.Sequential(*list(model.children())[:-1])
    features = body(batch).flatten(1)
    mean, head = features.mean(0), model.fc
    head.weight *= 2 / ((features - mean) @ head.weight.T).std()
    head.bias.copy_(-(head.weight @ mean))


def make_features(random: np.random.Generator, rows: int, folder: Path) -> None:
    """32 numbers a row, and a model of three layers for them."""
    values = pa.array(random.standard_normal(rows * settings.FEATURES, dtype=np.float32))
    features = pa.FixedSizeListArray.from_arrays(values, settings.FEATURES)
    write(folder, {"features": features})
    mlp(folder / "models/mlp")


def mlp(folder: Path) -> None:
    """The model's program and what describes it; `forebay model verify` accepts the package."""
    import hashlib

    import torch

    folder.mkdir(parents=True)
    torch.manual_seed(SEED)
    layers = [torch.nn.Linear(settings.FEATURES, 64), torch.nn.ReLU()]
    layers += [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(0)).eval().requires_grad_(False)
    program = torch.jit.trace(model, torch.zeros(4, settings.FEATURES))
    program.save(folder / "model.pt")
    digest = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
    (folder / "model.toml").write_text(
        manifest(
            "mlp",
            f"FLOAT[{settings.FEATURES}]",
            "FLOAT",
            'kind = "torch"\nprogram = "model.pt"',
            'cpus = 1\ngpus = 0\nmemory = "64 MiB"',
            "max_rows = 8192\nwindow_rows = 8192",
        )
        + f'[files]\n"model.pt" = "{digest}"\n'
    )


def make_hashes(random: np.random.Generator, rows: int, folder: Path) -> None:
    """Texts of 1 KiB, and the emulated accelerator that takes their hashes."""
    write(folder, {"text": kilobytes(random, rows)})
    emulated(folder / "models/accelerator", settings.SERVICE_ROWS)


def make_expansions(random: np.random.Generator, rows: int, folder: Path) -> None:
    """Texts of 1 KiB, and the emulated accelerator that takes many copies of each."""
    write(folder, {"text": kilobytes(random, rows)})
    emulated(folder / "models/accelerator", settings.EXPAND_ROWS)


def kilobytes(random: np.random.Generator, rows: int) -> list[str]:
    """Texts of 1,024 letters."""
    letters = random.integers(97, 123, (rows, 1024), dtype=np.uint8)
    return [bytes(row).decode() for row in letters]


def emulated(folder: Path, rows: int) -> None:
    """A package of the emulated runtime: the service time per batch of so many rows."""
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(
        manifest("accelerator", "STRING", "BIGINT", *device(settings.SERVICE_S, rows)) + NO_FILES
    )


def takes_pixels(folder: Path) -> None:
    """The same for pixels of files."""
    runtime = device(settings.DECODE_SERVICE_S, settings.DECODE_ROWS)
    text = manifest("accelerator", "BINARY", "BIGINT", *runtime)
    recipe = f"resize = {settings.RESIZE}\ncrop = {settings.CROP}\nfilter = \"bilinear\""
    scaled = f"mean = {list(settings.MEAN)}\nstd = {list(settings.DEVIATION)}"
    transform = f'kind = "image"\n{recipe}\nlayout = "hwc"\n{scaled}'
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(text.replace('kind = "tensor"', transform) + NO_FILES)


def device(service_s: float, rows: int) -> tuple[str, str, str]:
    """An emulated accelerator, what it needs, and its batches."""
    return (
        f'kind = "emulated"\nservice_ms = {1000 * service_s:.0f}',
        'cpus = 0\ngpus = 1\nmemory = "1 MiB"\ngpu_memory = "1 GiB"',
        # Rows have no length to sort by: a window is a batch, and none is cut short.
        f"max_rows = {rows}\nwindow_rows = {rows}",
    )


def manifest(name: str, given: str, result: str, runtime: str, resources: str, batch: str) -> str:
    """A model.toml up to its list of files."""
    return (
        f'format = 1\nname = "{name}"\nversion = "1"\nlicense = "Apache-2.0"\n'
        f'source = "benches/peers"\n\n[[input]]\nname = "input"\ntype = "{given}"\n\n'
        f'[[output]]\nname = "output"\ntype = "{result}"\n\n[transform]\nkind = "tensor"\n\n'
        f"[runtime]\n{runtime}\n\n[resources]\n{resources}\n\n[batch]\n{batch}\n\n"
    )


def vocabulary() -> np.ndarray:
    """The words of WordNet's glosses, as often as they occur there."""
    glosses = pq.read_table(WORDS, columns=["gloss"])["gloss"].to_pylist()
    return np.array([word for gloss in glosses for word in gloss.split()])


def write(folder: Path, columns: dict[str, object]) -> None:
    """`rows/*.parquet`, with an `id` from 0."""
    (folder / "rows").mkdir()
    table = pa.table(columns)
    table = table.add_column(0, "id", pa.array(range(len(table)), pa.int64()))
    size = -(-len(table) // FILES)
    for at in range(FILES):
        part = table.slice(at * size, size)
        if len(part):
            # The elements of lists are called as in Arrow, so that a vector read is a vector
            # asked for; Parquet's own name for them makes other types in DataFusion.
            path = folder / f"rows/{at}.parquet"
            pq.write_table(part, path, use_compliant_nested_type=False)


MAKERS = {
    "embed": make_texts,
    "chunk": make_documents,
    "images": make_images,
    "decode": make_pixels,
    "mlp": make_features,
    "start": make_features,
    "accelerator": make_hashes,
    "expand": make_expansions,
}
