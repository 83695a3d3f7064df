"""Whether results and behavior are right. Each check returns what it saw, or raises."""

import csv
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine import Forebay, SqlError
from inputs import SIDE, Inputs
from models import DEVIATION, MEAN, TOKENS, VOCABULARY, Models
from peers import on_device
from rates import Found, Work

ROWS = 256
FEW_ROWS = 32
FP32_ATOL = 1e-4
BF16_COSINE = 0.99
SCORE_ATOL = 2e-2
MEMORY_SLACK = 64 << 20
GROWTH_SLACK = 256 << 20
CANCEL_S = 10.0
STICKY_S = 60.0


# What it saw, in a sentence, or more of it.
Check = Callable[["Bed"], "str | Found"]


@dataclass(frozen=True)
class Bed:
    """What checks and benches run on."""

    forebay: Forebay
    models: Models
    inputs: Inputs
    device: str
    work: Work

    @property
    def is_gpu(self) -> bool:
        """Whether it is a real one."""
        return self.device == "cuda"

    def model(self, name: str, **options: object) -> str:
        """A statement that declares a model on the device."""
        settings = {"device": self.device, **options}
        given = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
        place = self.models.folder / name
        return f"CREATE OR REPLACE TEMPORARY MODEL {name} LOCATION '{place}' WITH ({given})"

    def tokens(self, rows: int) -> str:
        """A statement that makes the table `p` of prepared token ids."""
        width = self.inputs.ids.shape[1]
        vector = f"arrow_cast(arrow_cast(ids, 'List(Int32)'), 'FixedSizeList({width}, Int32)')"
        source = f"'{self.inputs.folder}/ids.json'"
        return f"CREATE TABLE p AS SELECT id, {vector} AS ids FROM {source} WHERE id < {rows}"

    def prepared(self) -> str:
        """A statement that makes the table `q` of prepared pixels."""
        side, files = SIDE, f"read_files('{self.inputs.folder}/images/*.bmp')"
        kind = f"FixedSizeList({side * side * 3}, Float32)"
        pixels = f"arrow_cast(image_preprocess(bytes, {side}, {side}), '{kind}')"
        return f"CREATE TABLE q AS SELECT {pixels} AS pixels FROM {files}"

    def embeddings(self, rows: int, **options: object) -> torch.Tensor:
        """Vectors of the first rows, by Forebay."""
        path = self.inputs.folder / "embeddings.json"
        query = "SELECT id, embedding FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
        copy = f"COPY ({query}) TO '{path}' STORED AS JSON"
        self.forebay.sql(self.model("encoder", **options), self.tokens(rows), copy)
        found = sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["id"])
        path.unlink()
        if [row["id"] for row in found] != list(range(rows)):
            raise AssertionError(f"{len(found)} rows, expected {rows}, each once")
        return torch.tensor([row["embedding"] for row in found])

    def reference(self, rows: int) -> torch.Tensor:
        """The same by PyTorch."""
        torch.backends.cuda.matmul.allow_tf32 = False
        with on_device(self.models.encoder, self.device, "fp32") as module, torch.inference_mode():
            return module(self.inputs.ids[:rows].to(self.device)).float().cpu()


def found(bed: Bed) -> str:
    """The device is seen."""
    said = bed.forebay.run("doctor")[0]
    line = next((line for line in said.splitlines() if "cuda" in line), "")
    if bed.is_gpu and "none" in line:
        raise AssertionError(line.strip())
    return " ".join(line.split()) or "CPU"


def fp32(bed: Bed) -> str:
    """Embeddings in full precision."""
    difference = (bed.embeddings(ROWS) - bed.reference(ROWS)).abs().max().item()
    if difference > FP32_ATOL:
        raise AssertionError(f"differ by {difference:.1e}, at most {FP32_ATOL:.0e} was expected")
    return f"largest difference {difference:.1e}"


def bf16(bed: Bed) -> str:
    """Embeddings in bf16."""
    rows = ROWS if bed.is_gpu else 32
    try:
        vectors = bed.embeddings(rows, precision="bf16")
    except SqlError as error:
        if bed.is_gpu or "'bf16' would run on CPU cores" not in str(error):
            raise
        return "refused, as this CPU has no bf16"
    cosine = torch.nn.functional.cosine_similarity(vectors, bed.reference(rows)).min().item()
    if cosine < BF16_COSINE:
        raise AssertionError(f"least cosine {cosine:.4f}, expected {BF16_COSINE}")
    return f"least cosine {cosine:.5f}"


def labels(bed: Bed) -> str:
    """Classes of images, which Forebay decodes and normalizes."""
    count = min(64, len(bed.inputs.pixels))
    files = f"SELECT url, bytes FROM read_files('{bed.inputs.folder}/images/*.bmp')"
    query = f"SELECT url, class, score FROM ml_predict(({files}), MODEL resnet, DESCRIPTOR(bytes))"
    said = bed.forebay.sql(bed.model("resnet"), f"{query} ORDER BY url LIMIT {count}")
    start = said.index("url,")
    rows = list(csv.DictReader(io.StringIO(said[start:])))
    if len({row["class"] for row in rows}) < 2:
        raise AssertionError("all images have one class, which proves nothing")
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    batch = ((bed.inputs.pixels[:count] / 255 - mean) / deviation).to(bed.device)
    with on_device(bed.models.resnet, bed.device, "fp32") as module, torch.inference_mode():
        classes, scores = module(batch)
    equal = sum(int(row["class"]) == at for row, at in zip(rows, classes.tolist(), strict=True))
    pairs = zip(rows, scores.tolist(), strict=True)
    apart = max(abs(float(row["score"]) - at) for row, at in pairs)
    if equal < 0.95 * count or apart > SCORE_ATOL:
        raise AssertionError(f"{equal} of {count} classes are equal, scores differ by {apart:.1e}")
    return f"{equal} of {count} classes equal, scores within {apart:.1e}"


def splitting(bed: Bed) -> str:
    """Where memory is scarce batches are as large as fit, or halved; no row is lost."""
    seen = crowded(bed) if bed.is_gpu else emulated(bed)
    if int(seen["rows_failed"]) > 0 or not (bed.is_gpu or int(seen["oom_splits"])):
        raise AssertionError(f"splits {seen['oom_splits']}, rows failed {seen['rows_failed']}")
    size = f", batches of {seen['batch_size']} rows" if bed.is_gpu else ""
    return f"{seen['oom_splits']} splits, no row failed{size}"


def crowded(bed: Bed) -> dict[str, str]:
    """Metrics of a query while this process has all but 2 GiB of the device's memory."""
    free, _ = torch.cuda.mem_get_info()
    hold = torch.empty(free - (2 << 30), dtype=torch.uint8, device="cuda")
    try:
        rows = len(bed.inputs.ids)
        query = "SELECT count(embedding) AS n FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
        first = (bed.model("encoder", gpu_memory="1GB"), bed.tokens(rows))
        found = bed.forebay.sql(*first, query).split()[-1]
        if found != str(rows):
            raise AssertionError(f"{found} rows, expected {rows}")
        return bed.forebay.metrics(*first, query)
    finally:
        del hold
        torch.cuda.empty_cache()


def fractions(bed: Bed) -> str:
    """Two replicas on halves of one device."""
    if bed.is_gpu:
        query = "SELECT count(embedding) FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
        seen = bed.forebay.metrics(bed.model("encoder", gpus=0.5), bed.tokens(ROWS), query)
    else:
        seen = emulated(bed)
    if int(seen["replicas"]) != 2:
        raise AssertionError(f"{seen['replicas']} replicas, expected 2")
    return "2 replicas"


def emulated(bed: Bed) -> dict[str, str]:
    """Metrics of a query on an emulated accelerator that has memory for 8 rows."""
    source = "(SELECT value AS n FROM range(0, 1000))"
    query = f"SELECT count(digest) FROM ml_predict({source}, MODEL emulated, DESCRIPTOR(n))"
    declared = bed.model("emulated", device="emulated")
    return bed.forebay.metrics(declared, query, options=("--emulated-accelerators", "1"))


def memory(bed: Bed) -> str:
    """All of the device's memory is free again after a query."""
    if not bed.is_gpu:
        return "no device memory here"
    before = torch.cuda.mem_get_info()[0]
    bed.embeddings(ROWS)
    lost = before - torch.cuda.mem_get_info()[0]
    if lost > MEMORY_SLACK:
        raise AssertionError(f"{lost / 2**20:.0f} MiB are still in use")
    return "free as before"


def cancel(bed: Bed) -> str:
    """Ctrl-C in the middle of a query ends it soon."""
    rows = "(SELECT p.ids FROM range(0, 1000000) CROSS JOIN p)"
    query = f"SELECT sum(embedding[1]) FROM ml_predict({rows}, MODEL encoder, DESCRIPTOR(ids))"
    declared = bed.model("encoder", determinism="volatile")
    seconds, status = bed.forebay.interrupted(8.0, declared, bed.tokens(ROWS), query)
    if seconds > CANCEL_S or status == 0:
        raise AssertionError(f"ended after {seconds:.1f} s with status {status}")
    return f"ended after {seconds:.2f} s"


def lengths(bed: Bed) -> str:
    """Rows of many lengths beside one another in half precision: each as it would be alone."""
    if bed.inputs.texts is None:
        return "no tokenizer was packed"
    rows, path = min(len(bed.inputs.ids), 512), bed.inputs.folder / "mixed.json"
    source = f"(SELECT id, text FROM '{bed.inputs.texts}' WHERE id < {rows})"
    query = f"SELECT id, embedding FROM ml_predict({source}, MODEL texts, DESCRIPTOR(text)) ORDER BY id"
    vectors = []
    for limits in ({"max_batch_rows": 64}, {"max_batch_rows": 1}):
        declared = bed.model("texts", precision="bf16" if bed.is_gpu else "fp32", **limits)
        bed.forebay.sql(declared, f"COPY ({query}) TO '{path}' STORED AS JSON")
        found = [json.loads(line)["embedding"] for line in path.read_text().splitlines()]
        path.unlink()
        vectors.append(torch.tensor(found))
    together, alone = vectors
    if together.shape != alone.shape or len(alone) != rows:
        raise AssertionError(f"{len(together)} and {len(alone)} rows, expected {rows}")
    cosine = torch.nn.functional.cosine_similarity(together, alone).min().item()
    if cosine < BF16_COSINE:
        raise AssertionError(f"least cosine {cosine:.4f}, expected {BF16_COSINE}")
    return f"least cosine {cosine:.5f} of {rows} rows"


def used_bytes(bed: Bed, process: int) -> int:
    """Memory in use: the device's, or that of a process."""
    if bed.is_gpu:
        free, total = torch.cuda.mem_get_info()
        return total - free
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])


def repeats(bed: Bed) -> Found:
    """Many queries in one process: memory after each, which must not grow once all is loaded."""
    query = "SELECT count(embedding) FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
    used: list[int] = []
    first = [bed.model("encoder"), bed.tokens(ROWS if bed.is_gpu else FEW_ROWS)]
    bed.forebay.repeated(first, query, bed.work.repeats, lambda pid: used.append(used_bytes(bed, pid)))
    if len(used) != bed.work.repeats:
        raise AssertionError(f"{len(used)} queries ended, expected {bed.work.repeats}")
    settled = used[len(used) // 4]
    grown = max(used[len(used) // 2 :]) - settled
    if grown > GROWTH_SLACK:
        raise AssertionError(f"memory grew by {grown >> 20} MiB from query {len(used) // 4} on: {mib(used)}")
    return {"seen": f"{mib(used)[0]} to {mib(used)[-1]} MiB", "mib_after_each": mib(used)}


def mib(sizes: list[int]) -> list[int]:
    """Whole ones."""
    return [size >> 20 for size in sizes]


def sticky(bed: Bed) -> str:
    """A program that breaks the device's context: the query ends soon with an error that says so, and another
    process is none the worse for it."""
    ids = f"arrow_cast(make_array({', '.join([str(VOCABULARY + 7)] * TOKENS)}), 'List(Int32)')"
    beyond = f"arrow_cast({ids}, 'FixedSizeList({TOKENS}, Int32)')"
    query = f"SELECT count(embedding) FROM ml_predict((SELECT {beyond} AS ids), MODEL encoder, DESCRIPTOR(ids))"
    start = time.monotonic()
    try:
        bed.forebay.sql(bed.model("encoder"), query)
    except SqlError as error:
        said = str(error)
    else:
        raise AssertionError("a token that the program has no embedding for gave a result")
    seconds = time.monotonic() - start
    expected = "CUDA error" if bed.is_gpu else "has no row for a number"
    if expected not in said or seconds > STICKY_S:
        raise AssertionError(f"after {seconds:.0f} s, expected {expected!r}: {said}")
    fp32(bed)
    return f"an error after {seconds:.1f} s; the next process computes"


def cold(bed: Bed) -> Found:
    """From the start of a process to the first rows, and how much of that the second query takes."""
    query = "SELECT count(embedding) FROM ml_predict(TABLE p, MODEL encoder, DESCRIPTOR(ids))"
    start = time.monotonic()
    seconds, metrics = bed.forebay.analyzed([bed.model("encoder"), bed.tokens(1)], query, query)
    whole = time.monotonic() - start
    first, second = seconds
    seen = f"first query {first:.2f} s, second {second:.3f} s"
    return {"seen": seen, "process_s": whole, "first_s": first, "second_s": second, "metrics": metrics}


# What must be right before anything else is worth its time.
SMOKE: dict[str, Check] = {
    "device found": found,
    "embeddings, fp32": fp32,
}
CHECKS: dict[str, Check] = {
    "embeddings, bf16": bf16,
    "labels of images": labels,
    "mixed lengths": lengths,
    "batch too large": splitting,
    "half a device each": fractions,
    "cold start": cold,
    "memory given back": memory,
    "memory after each query": repeats,
    "cancel": cancel,
    "error that sticks": sticky,
}
