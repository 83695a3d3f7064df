"""Rates of Forebay beside loops in plain PyTorch, in the same call on the same device."""

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

import exported
import peers
import rates
from checks import Bed
from inputs import SIDE
from models import TOKENS
from rates import Found

# Rows in one batch: what keeps a GPU busy, and what a CPU core's caches hold.
BATCH = {"cuda": 512, "cpu": 32}
IMAGE_BATCH = {"cuda": 128, "cpu": 32}
TEXT_BATCH = {"cuda": {}, "cpu": {"max_batch_rows": 64, "max_batch_tokens": 1024}}
# Of the sweeps: tokens and images in one batch.
TOKENS_SWEPT = {"cuda": [1024 << at for at in range(9)], "cpu": [1024]}
IMAGES_SWEPT = {"cuda": [32 << at for at in range(6)], "cpu": [8]}
# Bytes of a batch that an exchange should hold at least so often, and what it holds by default.
BATCHES_HELD, BUDGET = 8, 64 << 20
# Equal rows are the work here.
NO_SHARING = "SET forebay.share_equal_inputs = false"


def queries(
    bed: Bed, rows: int, first: list[str], query: Callable[[int], str], rounds: int | None = None
) -> Found:
    """The rate of a query over so many passes over the rows, repeated in one process, so the model stays
    loaded; and all that EXPLAIN ANALYZE says of it."""
    work, first = bed.work, [NO_SHARING, *first]
    times = 1
    if work.seconds:
        (_, warm), _ = bed.forebay.analyzed(first, query(1), query(1))
        times = rates.passes(work, warm)
    many = [query(times)] * (rounds or work.rounds)
    (cold, *seconds), metrics = bed.forebay.analyzed(first, query(1), *many)
    return rates.summary(rows * times, seconds) | {"first_s": cold, "metrics": metrics}


def beside(ours: Found, theirs: dict[str, Found]) -> Found:
    """Our rate with those of others, and how many times theirs it is."""
    ratios = {name: ours["rows_per_s"] / found["rows_per_s"] for name, found in theirs.items()}
    return ours | {"peers": theirs, "ratios": ratios}


def against(
    bed: Bed, module: torch.nn.Module, batches: list[torch.Tensor], precision: str, rounds: int | None = None
) -> dict[str, Found]:
    """The loops over a module."""
    rows = sum(len(batch) for batch in batches)
    with peers.on_device(module, bed.device, precision) as there:
        loops = {
            "blocking": peers.blocking(there, batches, bed.device),
            "pipelined": peers.pipelined(there, batches, bed.device),
            "ceiling": peers.ceiling(there, batches, bed.device),
        }
        if not bed.is_gpu:
            # Without a device there is nothing to overlap, and nothing to copy.
            loops = {"blocking": loops["blocking"]}
        return {name: rates.rate(run, rows, bed.work, rounds) for name, run in loops.items()}


def id_batches(bed: Bed, size: int) -> list[torch.Tensor]:
    """Token ids in batches of so many rows."""
    ids = bed.inputs.ids
    ids = ids.repeat(math.ceil(size / len(ids)), 1)
    return peers.pinned(ids.split(size), bed.device)


def embedding_query(times: int) -> str:
    """Token ids to vectors, so often."""
    rows = "TABLE p" if times == 1 else f"(SELECT ids FROM range(0, {times}) CROSS JOIN p)"
    return f"SELECT count(embedding) FROM ml_predict({rows}, MODEL encoder, DESCRIPTOR(ids))"


def embedding(bed: Bed, precision: str, replicas: int = 1, raw: bool = True) -> Found:
    """Prepared token ids to vectors."""
    limits: dict[str, object] = {"precision": precision, "max_batch_rows": BATCH[bed.device]}
    if bed.is_gpu:
        limits["gpus"] = 1 / replicas
    rows = len(bed.inputs.ids)
    ours = queries(bed, rows, [bed.model("encoder", **limits), bed.tokens(rows)], embedding_query)
    if not raw:
        return ours
    batches = id_batches(bed, BATCH[bed.device])
    return beside(ours, against(bed, bed.models.encoder, batches, precision))


def budget(batch_bytes: int) -> str:
    """A statement that lets the exchange hold enough batches of that size."""
    return f"SET forebay.byte_budget = {max(BUDGET, BATCHES_HELD * batch_bytes)}"


def embedding_sweep(bed: Bed, precision: str, tokens: int) -> Found:
    """The same with so many tokens in each batch."""
    size, rows = max(1, tokens // TOKENS), len(bed.inputs.ids)
    limits = {"precision": precision, "max_batch_rows": size, "batch_window_rows": max(4096, 2 * size)}
    first = [budget(size * TOKENS * 4), bed.model("encoder", **limits), bed.tokens(rows)]
    ours = queries(bed, rows, first, embedding_query, rounds=1)
    return beside(ours, against(bed, bed.models.encoder, id_batches(bed, size), precision, rounds=1))


def pixels_query(times: int) -> str:
    """Prepared pixels to classes, so often."""
    rows = "TABLE q" if times == 1 else f"(SELECT pixels FROM range(0, {times}) CROSS JOIN q)"
    return f"SELECT count(class) FROM ml_predict({rows}, MODEL pixels, DESCRIPTOR(pixels))"


def pixels(bed: Bed, precision: str, size: int | None = None) -> Found:
    """Prepared pixels to classes, and how much of the shorter of copies and computing was hidden."""
    rounds = None if size is None else 1
    size, rows = size or IMAGE_BATCH[bed.device], len(bed.inputs.pixels)
    limits = {"precision": precision, "max_batch_rows": size, "batch_window_rows": max(512, 2 * size)}
    first = [budget(size * SIDE * SIDE * 12), bed.model("pixels", **limits), bed.prepared()]
    ours = queries(bed, rows, first, pixels_query, rounds)
    batches = prepared(bed, size)
    found = beside(ours, against(bed, bed.models.pixels, batches, precision, rounds))
    if bed.is_gpu and rounds is None:
        copies = rates.rate(peers.copying(batches), rows, bed.work)
        found |= {"copies": copies, "hidden": hidden(found, copies)}
    return found


def hidden(found: Found, copies: Found) -> float:
    """The share of the shorter of copying and computing that took no time of its own."""
    copying, computing = 1 / copies["rows_per_s"], 1 / found["peers"]["ceiling"]["rows_per_s"]
    return max(0.0, (copying + computing - 1 / found["rows_per_s"]) / min(copying, computing))


def prepared(bed: Bed, size: int) -> list[torch.Tensor]:
    """Batches that are there already, of what the query has: floats, `[rows, 224, 224, 3]`."""
    batches = bed.inputs.pixels.permute(0, 2, 3, 1).float().contiguous().split(size)
    return peers.pinned(batches, bed.device)


def files(bed: Bed, times: int) -> str:
    """A source of image files, so often."""
    found = f"SELECT bytes FROM read_files('{bed.inputs.folder}/images/*.bmp')"
    return found if times == 1 else f"SELECT bytes FROM range(0, {times}) CROSS JOIN ({found})"


def images(bed: Bed, precision: str) -> Found:
    """Image files to classes: CPU work and the device in one query, against a DataLoader."""
    rows = len(bed.inputs.pixels)

    def query(times: int) -> str:
        return f"SELECT count(class) FROM ml_predict(({files(bed, times)}), MODEL resnet, DESCRIPTOR(bytes))"

    ours = queries(bed, rows, [bed.model("resnet", precision=precision)], query)
    with peers.on_device(bed.models.pixels, bed.device, precision) as there:
        run = of_loader(bed, there)
        return beside(ours, {"DataLoader": rates.rate(run, rows, bed.work)})


def of_loader(bed: Bed, module: torch.nn.Module) -> peers.Passes:
    """The loop over files, which workers of a DataLoader read; they are started before the time is taken."""

    def run(times: int) -> float:
        return peers.blocking(module, loader(bed, times), bed.device)(1)

    return run


class Bitmaps(torch.utils.data.Dataset):
    """Files as the query reads them; decoding a BMP is a copy, so this peer is hard to beat."""

    def __init__(self, folder: Path, times: int) -> None:
        self.paths = sorted(folder.iterdir()) * times

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        data = bytearray(self.paths[at].read_bytes())
        found = torch.frombuffer(data, dtype=torch.uint8, offset=54)
        return found.view(SIDE, SIDE, 3).flip(0, 2)


def loader(bed: Bed, times: int) -> Iterable[torch.Tensor]:
    """As many workers as cores, memory pinned where there is a device."""
    return torch.utils.data.DataLoader(
        Bitmaps(bed.inputs.folder / "images", times),
        batch_size=IMAGE_BATCH[bed.device],
        num_workers=min(16, torch.get_num_threads()),
        pin_memory=bed.is_gpu,
    )


def decoding(bed: Bed) -> Found:
    """What the CPUs make of image files by themselves."""
    rows = len(bed.inputs.pixels)
    query = lambda times: f"SELECT count(image_preprocess(bytes, {SIDE}, {SIDE})) FROM ({files(bed, times)})"
    return alone(bed, rows, [], query)


def alone(bed: Bed, rows: int, first: list[str], query: Callable[[int], str]) -> Found:
    """The rate of a query without a model."""

    def run(times: int) -> float:
        return bed.forebay.timed(*first, query(times))[-1]

    return rates.rate(run, rows, bed.work)


def compiled(bed: Bed, precision: str) -> Found:
    """Texts to vectors by a package of the exporter: its native code, against its TorchScript."""
    exported.package(bed, precision)
    rows, found = len(bed.inputs.ids), {}
    for native in ("true", "false"):
        declared = bed.model(exported.NAME, precision=precision, allow_native=native)
        found[native] = queries(bed, rows, [declared], lambda times: embed(bed, exported.NAME, times))
    return beside(found["true"], {"TorchScript": found["false"]})


def embed(bed: Bed, model: str, times: int) -> str:
    """Texts to vectors, so often."""
    return (
        f"SELECT count(embedding) FROM ml_predict(({text_rows(bed, times)}), MODEL {model}, DESCRIPTOR(text))"
    )


def text_rows(bed: Bed, times: int) -> str:
    """A source of texts, so often."""
    found = f"SELECT text FROM '{bed.inputs.texts}'"
    return found if times == 1 else f"SELECT text FROM range(0, {times}) CROSS JOIN ({found})"


def tokenizing(bed: Bed) -> Found:
    """What the CPUs make of texts by themselves: tokens for a model that takes no time."""
    rows = len(bed.inputs.ids)

    def query(times: int) -> str:
        return f"SELECT count(digest) FROM ml_predict(({text_rows(bed, times)}), MODEL tokens, DESCRIPTOR(text))"

    def run(times: int) -> float:
        given = (NO_SHARING, bed.model("tokens", device="emulated"), query(times))
        return bed.forebay.timed(*given, options=("--emulated-accelerators", "1"))[-1]

    return rates.rate(run, rows, bed.work)


def texts(bed: Bed, precision: str, model: str = "texts") -> Found:
    """Texts of mixed lengths to vectors, tokenizing included, against `encode` of sentence-transformers. The
    first query meets each length for the first time."""
    rows = len(bed.inputs.ids)
    limits = TEXT_BATCH[bed.device] if model == "texts" else {}
    declared = bed.model(model, precision=precision, **limits)
    ours = queries(bed, rows, [declared], lambda times: embed(bed, model, times))
    if model != "texts":
        return ours
    try:
        return beside(ours, encoded(bed, precision))
    except ImportError as error:
        return ours | {"not_compared": f"{error.name} is not installed here"}


def encoded(bed: Bed, precision: str) -> dict[str, Found]:
    """The rates of `encode`, which sorts by length, where the library is installed."""
    encoder = exported.sentence_encoder(bed, precision)
    lines = bed.inputs.texts.read_text().splitlines()
    found = [json.loads(line)["text"] for line in lines]

    def passes(size: int) -> peers.Passes:
        def run(times: int) -> float:
            with timer() as took:
                encoder.encode(found * times, batch_size=size)
            return took[0]

        return run

    # On a GPU 512 rows are faster than 128.
    sizes = {"cuda": (512,), "cpu": (32,)}[bed.device]
    return {f"encode, {size}": rates.rate(passes(size), len(found), bed.work) for size in sizes}


@contextlib.contextmanager
def timer() -> Iterator[list[float]]:
    """The seconds that what is inside takes, the device's work included."""
    took, start = [], time.perf_counter()
    yield took
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    took.append(time.perf_counter() - start)


def plan(bed: Bed) -> dict[str, Callable[[], Found]]:
    """All benches, in the order of their worth: the last ones are left out if time runs out."""
    device = bed.device
    half = "bf16" if bed.is_gpu else "fp32"
    found: dict[str, Callable[[], Found]] = {
        "MiniLM, prepared, bf16": lambda: embedding(bed, "bf16"),
        "MiniLM, texts, bf16": lambda: texts(bed, "bf16"),
        "ResNet-50, files, bf16": lambda: images(bed, "bf16"),
        "MiniLM, texts, as exported": lambda: texts(bed, half, "exported"),
        "tokenizing alone": lambda: tokenizing(bed),
        "decoding alone": lambda: decoding(bed),
        "ResNet-50, prepared, bf16": lambda: pixels(bed, "bf16"),
        "MiniLM, texts, native code, bf16": lambda: compiled(bed, "bf16"),
        "MiniLM, prepared, fp32": lambda: embedding(bed, "fp32"),
    }
    for tokens in TOKENS_SWEPT[device]:
        name = f"MiniLM, {tokens} tokens a batch, {half}"
        found[name] = lambda tokens=tokens: embedding_sweep(bed, half, tokens)
    for size in IMAGES_SWEPT[device]:
        found[f"ResNet-50, {size} images a batch, {half}"] = lambda size=size: pixels(bed, half, size)
    found |= {
        "MiniLM, prepared, bf16, 2 replicas": lambda: embedding(bed, "bf16", 2, raw=False),
        "MiniLM, prepared, bf16, 4 replicas": lambda: embedding(bed, "bf16", 4, raw=False),
        "MiniLM, prepared, fp16": lambda: embedding(bed, "fp16"),
        "ResNet-50, prepared, fp32": lambda: pixels(bed, "fp32"),
        "ResNet-50, files, fp32": lambda: images(bed, "fp32"),
        "MiniLM, texts, fp32": lambda: texts(bed, "fp32"),
    }
    if not bed.is_gpu:
        # Half precision is slower than full on a CPU, and replicas are its cores.
        found = {name: task for name, task in found.items() if not re.search(r"bf16|fp16", name)}
    if bed.inputs.texts is None:
        found = {name: task for name, task in found.items() if not re.search("texts|tokenizing", name)}
    return found


def compare_precisions(results: dict[str, Found]) -> None:
    """Adds to each result in half precision how many times the rate of full precision it is."""
    for name, found in results.items():
        full = results.get(re.sub(r"(bf16|fp16)(, \d replicas)?$", "fp32", name), {})
        if re.search("bf16|fp16", name) and "rows_per_s" in found and "rows_per_s" in full:
            found["over_fp32"] = found["rows_per_s"] / full["rows_per_s"]
