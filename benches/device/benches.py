"""Rates of Forebay and of loops in plain PyTorch, in the same call on the same device."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from checks import Bed
from models import DEVIATION, MEAN

# On a CPU one is enough to see that it runs.
ROUNDS = 3 if torch.cuda.is_available() else 1
# Rows in one batch: what keeps a GPU busy, and what a CPU core's caches hold.
BATCH = {"cuda": 512, "cpu": 32}
Result = dict[str, float | str]


def rate(task: Callable[[], int], device: str) -> float:
    """Rows per second: the median of some rounds after one that is not counted."""
    rates = []
    for at in range(ROUNDS + 1):
        start = time.perf_counter()
        rows = task()
        if device == "cuda":
            torch.cuda.synchronize()
        if at:
            rates.append(rows / (time.perf_counter() - start))
    return statistics.median(rates)


def queries(bed: Bed, rows: int, *statements: str) -> float:
    """Rows per second of the last statement, repeated in one process, so the model stays loaded."""
    *first, query = statements
    times = bed.forebay.timed(*first, *[query] * (ROUNDS + 1))
    return rows / statistics.median(times[len(first) + 1 :])


def embedding(bed: Bed, precision: str, replicas: int = 1, raw: bool = True) -> Result:
    """Prepared token ids to vectors."""
    rows = len(bed.inputs.ids)
    limits: dict[str, object] = {"precision": precision, "max_batch_rows": BATCH[bed.device]}
    if bed.is_gpu:
        limits["gpus"] = 1 / replicas
    query = "SELECT count(embedding) FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
    ours = queries(bed, rows, bed.model("encoder", **limits), bed.tokens(rows), query)
    found: Result = {"rows_per_s": ours}
    if raw:
        theirs = rate(lambda: encode(bed, precision), bed.device)
        found |= {"raw_rows_per_s": theirs, "ratio": ours / theirs}
    return found


def encode(bed: Bed, precision: str) -> int:
    """The loop: batches as large as the package's, one after the other, results fetched."""
    module, ids = bed.models.encoder.to(bed.device, kind(precision)), bed.inputs.ids
    if bed.is_gpu:
        ids = ids.pin_memory()
    with torch.inference_mode():
        for batch in ids.split(BATCH[bed.device]):
            batch = batch.to(bed.device, non_blocking=True)
            module(batch).float().cpu()
    bed.models.encoder.to("cpu", torch.float32)
    return len(ids)


def images(bed: Bed, precision: str) -> Result:
    """Image files to classes: CPU work and the device in one query, against a DataLoader."""
    rows = len(bed.inputs.pixels)
    files = f"SELECT bytes FROM read_files('{bed.inputs.folder}/images/*.bmp')"
    query = f"SELECT count(class) FROM ml_predict(({files}), MODEL resnet, DESCRIPTOR(bytes))"
    ours = queries(bed, rows, bed.model("resnet", precision=precision), query)
    theirs = rate(lambda: classify(bed, precision, loader(bed)), bed.device)
    alone = rate(lambda: classify(bed, precision, prepared(bed)), bed.device)
    return {
        "rows_per_s": ours,
        "raw_rows_per_s": theirs,
        "ratio": ours / theirs,
        "prepared_rows_per_s": alone,
        "ratio_to_prepared": ours / alone,
    }


def classify(bed: Bed, precision: str, batches: Iterator[torch.Tensor]) -> int:
    """The loop: bytes to the device, normalized there, channels-last."""
    module = bed.models.resnet.to(bed.device, kind(precision), memory_format=torch.channels_last)
    mean, deviation = (
        torch.tensor(v, device=bed.device).view(1, 3, 1, 1) * 255 for v in (MEAN, DEVIATION)
    )
    rows = 0
    with torch.inference_mode():
        for batch in batches:
            pixels = batch.to(bed.device, non_blocking=True)
            pixels = ((pixels - mean) / deviation).to(kind(precision))
            module(pixels.contiguous(memory_format=torch.channels_last))[0].cpu()
            rows += len(batch)
    bed.models.resnet.to("cpu", torch.float32)
    return rows


def prepared(bed: Bed) -> Iterator[torch.Tensor]:
    """Batches that are there already."""
    pixels = bed.inputs.pixels.pin_memory() if bed.is_gpu else bed.inputs.pixels
    return iter(pixels.split(128))


class Bitmaps(torch.utils.data.Dataset):
    """Files as the query reads them; decoding a BMP is a copy, so this peer is hard to beat."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        data = bytearray(self.paths[at].read_bytes())
        pixels = torch.frombuffer(data, dtype=torch.uint8, offset=54)
        return pixels.view(224, 224, 3).flip(0, 2).permute(2, 0, 1)


def loader(bed: Bed) -> Iterator[torch.Tensor]:
    """As many workers as cores, memory pinned where there is a device."""
    return iter(
        torch.utils.data.DataLoader(
            Bitmaps(bed.inputs.folder / "images"),
            batch_size=128,
            num_workers=min(16, torch.get_num_threads()),
            pin_memory=bed.is_gpu,
        )
    )


def texts(bed: Bed, precision: str) -> Result:
    """Texts to vectors, tokenizing included, and how busy the device was."""
    source = f"(SELECT text FROM '{bed.inputs.texts}')"
    query = f"SELECT count(embedding) FROM ml_predict({source}, MODEL texts, DESCRIPTOR(text))"
    rows = len(bed.inputs.ids)
    declared = bed.model("texts", precision=precision)
    found: Result = {"rows_per_s": queries(bed, rows, declared, query)}
    seen = bed.forebay.metrics(declared, query)
    if "device_utilization" in seen:
        found["device_utilization"] = seen["device_utilization"]
    return found


def plan(bed: Bed) -> dict[str, Callable[[], Result]]:
    """All benches, in the order of their worth: the last ones are left out if time runs out."""
    found: dict[str, Callable[[], Result]] = {
        "MiniLM, prepared, fp32": lambda: embedding(bed, "fp32"),
        "MiniLM, prepared, bf16": lambda: embedding(bed, "bf16"),
        "ResNet-50, files, bf16": lambda: images(bed, "bf16"),
        "MiniLM, prepared, fp16": lambda: embedding(bed, "fp16"),
        "MiniLM, bf16, 2 replicas": lambda: embedding(bed, "bf16", 2, raw=False),
        "MiniLM, bf16, 4 replicas": lambda: embedding(bed, "bf16", 4, raw=False),
        "ResNet-50, files, fp32": lambda: images(bed, "fp32"),
    }
    if not bed.is_gpu:
        # Half precision is slower than full on a CPU, and replicas are its cores.
        found = {name: task for name, task in found.items() if name.endswith("fp32")}
    if bed.inputs.texts is not None:
        precision = "bf16" if bed.is_gpu else "fp32"
        found[f"MiniLM, texts, {precision}"] = lambda: texts(bed, precision)
    return found


def kind(precision: str) -> torch.dtype:
    """PyTorch's name of a precision."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
