"""What every peer runs on its rows, whatever moves the rows: models, transforms, the accelerator.

Each class is made once per worker. `threads` is how many cores a worker has to itself, so that all
workers together use all cores and no more; None leaves PyTorch's own choice.
"""

import fcntl
import functools
import hashlib
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from engines import settings

MAX_TOKENS = 256
# Of batches of texts, as Forebay's package has them: the fastest on CPU cores.
BATCH_ROWS, BATCH_TOKENS = 64, 1024

# PyTorch traces one module at a time; engines make workers in several threads.
TRACING = threading.Lock()


def limit_threads(threads: int | None) -> None:
    """So many threads within one operator of PyTorch."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


class Embedder:
    """all-MiniLM-L6-v2 by sentence-transformers.

    `encode` sorts what it is given by length, so callers give it many rows at once; 32 is the
    faster of the batch sizes 32 and 64 on CPU cores.
    """

    def __init__(self, threads: int | None = 1) -> None:
        from sentence_transformers import SentenceTransformer

        limit_threads(threads)
        self.model = SentenceTransformer(str(settings.MINILM), device="cpu")

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Rows of 384 numbers."""
        return self.model.encode(
            list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=False
        )


class Chunker:
    """Windows of tokens that end in front of a word, cut out of the text itself; tokens are the
    model's, which adds two of its own to each window."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(settings.MINILM / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = settings.CHUNK_TOKENS - self.tokenizer.num_special_tokens_to_add(False)

    def __call__(self, text: str) -> list[str]:
        """The chunks of one text, in order."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        spans, words = encoding.offsets, [None, *encoding.word_ids, None]
        begins = [before != word for before, word in itertools.pairwise(words)]
        chunks, start = [], 0
        while start < len(spans):
            end = min(start + self.size, len(spans))
            end = next((at for at in range(end, start, -1) if begins[at]), end)
            chunks.append(text[spans[start][0] : spans[end - 1][1]])
            common = range(max(end - settings.CHUNK_OVERLAP, start + 1), end)
            start = next((at for at in common if begins[at]), end) if end < len(spans) else end
        return chunks


def tokenizer() -> object:
    """The model's, which cuts at its length and does not pad."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(settings.MINILM_PACKAGE / "tokenizer.json"))
    found.enable_truncation(MAX_TOKENS)
    found.no_padding()
    return found


def batches_by_length(rows: list[list[int]]) -> Iterator[list[list[int]]]:
    """Of rows that are sorted, the longest first: so many tokens each, padding included."""
    start = 0
    while start < len(rows):
        count = max(1, min(BATCH_ROWS, BATCH_TOKENS // max(len(rows[start]), 1)))
        yield rows[start : start + count]
        start += count


class Classifier:
    """ResNet-18 over JPEG files.

    Frozen and channels-last: up to 1.5 times as fast on CPU cores as the module as it comes.
    Pixels stay bytes until they are a batch.
    """

    def __init__(self, models: Path, threads: int | None = 1) -> None:
        import torch
        from torchvision import models as zoo

        limit_threads(threads)
        torch.set_grad_enabled(False)
        state = torch.load(models / "resnet18.pth", weights_only=True)
        model = zoo.resnet18(num_classes=state["fc.bias"].shape[0])
        model.load_state_dict(state)
        model = model.eval().to(memory_format=torch.channels_last)
        example = torch.zeros(2, 3, settings.CROP, settings.CROP)
        example = example.to(memory_format=torch.channels_last)
        with TRACING:
            self.model = torch.jit.freeze(torch.jit.trace(model, example))
        self.mean = torch.tensor(settings.MEAN).reshape(1, 3, 1, 1) * 255
        self.deviation = torch.tensor(settings.DEVIATION).reshape(1, 3, 1, 1) * 255
        self.recipe = recipe()
        self.labels = (models / "labels.txt").read_text().splitlines()

    def pixels(self, data: bytes) -> np.ndarray:
        """`[224, 224, 3]` bytes."""
        return self.recipe(data)

    def classify(self, pixels: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Labels and scores of `[rows, 224, 224, 3]` bytes."""
        import torch

        torch.set_grad_enabled(False)
        # A view: the memory is channels-last already.
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        scores = self.model((batch - self.mean) / self.deviation).softmax(-1)
        best = scores.max(-1)
        return [self.labels[at] for at in best.indices.tolist()], best.values.numpy()

    def __call__(self, files: Sequence[bytes]) -> tuple[list[str], np.ndarray]:
        """Labels and scores of files, 8 at a time: 16 take 2% less on a CPU core, and twice the memory."""
        labels: list[str] = []
        scores = []
        for start in range(0, len(files), settings.IMAGE_ROWS):
            some = files[start : start + settings.IMAGE_ROWS]
            pixels = np.stack([self.pixels(data) for data in some])
            found = self.classify(pixels)
            labels += found[0]
            scores.append(found[1])
        return labels, np.concatenate(scores)


def recipe() -> Callable[[bytes], np.ndarray]:
    """torchvision's recipe for classifiers, up to the crop, on bytes.

    As its documentation advises for speed: the second version of the transforms, on tensors of bytes.
    It takes half of the time that it takes on images of Pillow.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    steps = v2.Compose([v2.Resize(settings.RESIZE), v2.CenterCrop(settings.CROP)])

    def apply(data: bytes) -> np.ndarray:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels = steps(decode_jpeg(encoded, mode=ImageReadMode.RGB))
        return pixels.permute(1, 2, 0).contiguous().numpy()

    return apply


class Mlp:
    """32 numbers in, one out; the TorchScript program of the package that Forebay runs."""

    def __init__(self, models: Path, threads: int | None = 1) -> None:
        import torch

        limit_threads(threads)
        self.model = torch.jit.load(models / "mlp/model.pt")

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """One number per row."""
        import torch

        with torch.inference_mode():
            return self.model(torch.from_numpy(features)).numpy()


class Decoder:
    """JPEG files to pixels, which the emulated accelerator takes."""

    def __init__(self) -> None:
        limit_threads(1)
        self.recipe = recipe()
        self.slot = Accelerator(settings.DECODE_SERVICE_S)

    def __call__(self, files: Sequence[bytes]) -> list[int]:
        """How many bytes of pixels each file has become."""
        sizes: list[int] = []
        for start in range(0, len(files), settings.DECODE_ROWS):
            batch = files[start : start + settings.DECODE_ROWS]
            sizes += [self.recipe(data).size for data in batch]
            self.slot()
        return sizes


@functools.cache
def embedder(threads: int | None) -> Embedder:
    """One per process, for workers that live on between tasks."""
    return Embedder(threads)


@functools.cache
def classifier(models: Path, threads: int | None) -> Classifier:
    """One per process."""
    return Classifier(models, threads)


@functools.cache
def decoder() -> Decoder:
    """One per process."""
    return Decoder()


@functools.cache
def small_model(models: Path, threads: int | None) -> Mlp:
    """One per process."""
    return Mlp(models, threads)


def hashed(text: str) -> str:
    """CPU work: SHA-512 of many copies of a text. hashlib lets other threads run meanwhile."""
    return hashlib.sha512(text.encode() * settings.HASHED_COPIES).hexdigest()


def expand(text: str) -> bytes:
    """4 MiB from 1 KiB."""
    return text.encode() * settings.EXPAND_COPIES


class Accelerator:
    """A device with one slot: a batch holds it for the service time, whoever sends it.

    The slot is a locked file, so it is one slot for threads and for processes.
    """

    def __init__(self, service_s: float = settings.SERVICE_S) -> None:
        self.service_s = service_s
        self.slot = Path(tempfile.gettempdir()) / "forebay-bench-accelerator"

    def __call__(self) -> None:
        """One batch."""
        with open(self.slot, "a") as slot:
            fcntl.flock(slot, fcntl.LOCK_EX)
            time.sleep(self.service_s)
