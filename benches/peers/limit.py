"""The limit of a workload on this machine: its model alone, and its CPU part alone.

    python -m limit WORKLOAD DATA [--forebay BINARY]

The model gets prepared tensors in the best batches, from as many threads as cores with one thread
per operator; equal rows count once. Of a text model it is its matrix products alone, at the rate of the
fastest library (see `products`). The CPU part has all cores. Where both need the cores, ideal is
their sum; where the model is on a device of its own, the slower of the two. Prints a JSON object.
"""

import argparse
import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import products
from engines import settings, tables, work


def seconds(task: Callable[[], object]) -> float:
    """Wall time."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def on_all_cores(task: Callable[[object], object], items: Sequence[object]) -> float:
    """Wall time of a task over all items, by a thread per core; the first call is not counted."""
    import torch

    def apply(item: object) -> None:
        with torch.inference_mode():
            task(item)

    torch.set_num_threads(1)
    apply(items[0])
    with ThreadPoolExecutor(settings.CORES) as threads:
        return seconds(lambda: list(threads.map(apply, items)))


def texts_limit(texts: list[str]) -> dict[str, float]:
    """Tokens of distinct texts through MiniLM: its matrix products at the peak of this machine, and as
    TorchScript runs it, which was the limit until November 2026."""
    import torch

    tokenizer = work.tokenizer()
    distinct = list(dict.fromkeys(texts))
    found: list[list[int]] = []
    cpu = seconds(lambda: found.extend(code.ids for code in tokenizer.encode_batch(distinct)))
    rows = sorted(found, key=len, reverse=True)
    batches = [padded(batch) for batch in work.batches_by_length(rows)]
    peaks = products.peaks()
    model_s = products.seconds(peaks, [tuple(ids.shape) for ids, _ in batches])
    model = torch.jit.load(settings.MINILM_PACKAGE / "model.pt")
    torchscript_s = on_all_cores(lambda batch: model(*batch), batches)
    told = {"torchscript_s": torchscript_s, "distinct": len(distinct), **products.told(peaks)}
    return {"model_s": model_s, "cpu_s": cpu, "ideal_s": model_s + cpu, **told}


def padded(rows: list[list[int]]) -> tuple[object, object]:
    """Ids and mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
        mask[at, : len(row)] = 1
    return ids, mask


def embed(data: Path, _: Path | None) -> dict[str, float]:
    """Texts."""
    return texts_limit(read(data)["text"].to_pylist())


def chunk(data: Path, _: Path | None) -> dict[str, float]:
    """Documents; cutting them is a pass of the tokenizer too."""
    chunker = work.Chunker()
    texts = read(data)["text"].to_pylist()
    chunks: list[str] = []
    with ThreadPoolExecutor(settings.CORES) as threads:
        cut = seconds(lambda: chunks.extend(sum(threads.map(chunker, texts), [])))
    found = texts_limit(chunks)
    return {**found, "cpu_s": found["cpu_s"] + cut, "ideal_s": found["ideal_s"] + cut}


def images(data: Path, forebay: Path | None) -> dict[str, float]:
    """The model in the best batches; decoding by torchvision or by Forebay's functions, the faster."""
    import numpy as np

    pixels: list[np.ndarray] = []
    found = decoding(data, forebay, decode, pixels)
    classifier = work.Classifier(data / "models", 1)

    def model(rows: int) -> float:
        batches = [np.stack(pixels[at : at + rows]) for at in range(0, len(pixels), rows)]
        return on_all_cores(classifier.classify, batches)

    model_s = min(map(model, (settings.IMAGE_ROWS, 2 * settings.IMAGE_ROWS)))
    cpu = min(found.values())
    return {"model_s": model_s, "cpu_s": cpu, "ideal_s": model_s + cpu, **found}


def pixels(data: Path, forebay: Path | None) -> dict[str, float]:
    """Service times of all batches; decoding, the faster of the two, beside them. What torchvision
    takes on Pillow's images is told too."""
    sizes: list[int] = []
    found = decoding(data, forebay, decoded_size, sizes)
    model_s = -(-len(sizes) // settings.DECODE_ROWS) * settings.DECODE_SERVICE_S
    cpu = min(found.values())
    pillow = {
        "cpu_pillow_s": in_processes(pillow_bytes, data)[0],
        "cpu_pillow_floats_s": in_processes(pillow_floats, data)[0],
    }
    return {"model_s": model_s, "cpu_s": cpu, "ideal_s": max(model_s, cpu), **found, **pillow}


def decoding(
    data: Path, forebay: Path | None, task: Callable[[Path], object], results: list
) -> dict[str, float]:
    """Times of both decoders over all files, on all cores."""
    found, decoded = in_processes(task, data)
    results.extend(decoded)
    ours = {} if forebay is None else {"cpu_forebay_s": forebay_decodes(forebay, data)}
    return {"cpu_torchvision_s": found, **ours}


def in_processes(task: Callable[[Path], object], data: Path) -> tuple[float, list]:
    """Wall time of a task over all files, by a process per core, and what it gives; the first call of
    each is not counted."""
    import multiprocessing

    files = sorted((data / "images").iterdir())
    results: list = []
    with multiprocessing.Pool(settings.CORES) as pool:
        pool.map(task, files[: settings.CORES], chunksize=1)
        found = seconds(lambda: results.extend(pool.map(task, files, chunksize=16)))
    return found, results


def decoded_size(path: Path) -> int:
    """Bytes of the pixels of one file."""
    return decode(path).size


def decode(path: Path) -> object:
    """Pixels of one file."""
    return recipe()(path.read_bytes())


@functools.cache
def recipe() -> Callable[[bytes], object]:
    """One per process, which is one of as many as there are cores."""
    work.limit_threads(1)
    return work.recipe()


def pillow_bytes(path: Path) -> int:
    """What `decode` gives, by Pillow and torchvision's transforms of its images."""
    return pillow(path, floats=False)


def pillow_floats(path: Path) -> int:
    """The same, and then normalized floats: the weights' own transforms, as guides have it."""
    return pillow(path, floats=True)


def pillow(path: Path, floats: bool) -> int:
    """How many numbers become of one file."""
    from PIL import Image

    with Image.open(path) as image:
        return pillow_recipe(floats)(image.convert("RGB")).numel()


@functools.cache
def pillow_recipe(floats: bool) -> Callable[[object], object]:
    """One per process."""
    from torchvision import models, transforms

    work.limit_threads(1)
    if floats:
        return models.ResNet18_Weights.DEFAULT.transforms()
    resize, crop = transforms.Resize(settings.RESIZE), transforms.CenterCrop(settings.CROP)
    return transforms.Compose([resize, crop, transforms.PILToTensor()])


def forebay_decodes(binary: Path, data: Path) -> float:
    """The CPU part in SQL, less the start of the process."""

    def query(text: str) -> float:
        command = [str(binary), "shell", "--quiet", "-c", text]
        # Without what the launcher sets for PyTorch.
        own = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        quiet = {"stdout": subprocess.DEVNULL, "env": own}
        return seconds(lambda: subprocess.run(command, check=True, **quiet))

    pixels = f"image_preprocess(bytes, {settings.RESIZE}, {settings.CROP})"
    files = f"read_files('{data}/images/*.jpg')"
    return query(f"SELECT count({pixels}) FROM {files}") - query("SELECT 1")


def mlp(data: Path, _: Path | None) -> dict[str, float]:
    """The model in batches of 8,192 or 65,536; reading and writing as pyarrow does it."""
    table = read(data)
    features = tables.matrix(table["features"])
    model = work.Mlp(data / "models", 1)
    model_s = min(
        on_all_cores(model, [features[at : at + rows] for at in range(0, len(features), rows)])
        for rows in (8192, 65536)
    )
    result = pa.table({"id": table["id"], "score": features[:, 0]})
    output = data / "limit.parquet"
    cpu = seconds(lambda: (read(data), pq.write_table(result, output)))
    output.unlink()
    return {"model_s": model_s, "cpu_s": cpu, "ideal_s": model_s + cpu}


def device(data: Path, task: Callable[[str], object], rows: int) -> dict[str, float]:
    """Service times of all batches; the CPU part beside them."""
    texts = read(data)["text"].to_pylist()
    model_s = -(-len(texts) // rows) * settings.SERVICE_S
    cpu = on_all_cores(task, texts)
    return {"model_s": model_s, "cpu_s": cpu, "ideal_s": max(model_s, cpu)}


def accelerator(data: Path, _: Path | None) -> dict[str, float]:
    """Hashing."""
    return device(data, work.hashed, settings.SERVICE_ROWS)


def expand(data: Path, _: Path | None) -> dict[str, float]:
    """Copying."""
    return device(data, lambda text: len(work.expand(text)), settings.EXPAND_ROWS)


def read(data: Path) -> pa.Table:
    """The input."""
    return pq.read_table(data / "rows")


LIMITS = {
    "embed": embed,
    "chunk": chunk,
    "images": images,
    "decode": pixels,
    "mlp": mlp,
    "accelerator": accelerator,
    "expand": expand,
}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=LIMITS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--forebay", type=Path)
    options = parser.parse_args()
    found = LIMITS[options.workload](options.data, options.forebay)
    print(json.dumps({key: round(value, 4) for key, value in found.items()}))


if __name__ == "__main__":
    main()
