"""Rates of Forebay and of loops in plain PyTorch, in the same call on the same device."""

import json
import re
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from checks import Bed
from inputs import SIDE
from models import HEADS, INNER, LAYERS, VOCABULARY, WIDTH

# On a CPU one is enough to see that it runs.
ROUNDS = 3 if torch.cuda.is_available() else 1
# Rows in one batch: what keeps a GPU busy, and what a CPU core's caches hold.
BATCH = {"cuda": 512, "cpu": 32}
TEXT_BATCH = {"cuda": {}, "cpu": {"max_batch_rows": 64, "max_batch_tokens": 1024}}
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


def pixels(bed: Bed, precision: str) -> Result:
    """Prepared pixels to classes, and how much of the shorter of copies and computing was hidden."""
    rows = len(bed.inputs.pixels)
    declared = bed.model("pixels", precision=precision)
    query = "SELECT count(class) FROM ml_predict(TABLE q, MODEL pixels, DESCRIPTOR(pixels))"
    ours = queries(bed, rows, declared, bed.prepared(), query)
    batches = prepared(bed)
    theirs = rate(lambda: classify(bed, precision, batches), bed.device)
    found: Result = {"rows_per_s": ours, "raw_rows_per_s": theirs, "ratio": ours / theirs}
    if bed.is_gpu:
        copying = rows / rate(lambda: copied(batches), bed.device)
        there = [batch.to(bed.device) for batch in batches]
        computing = rows / rate(lambda: classify(bed, precision, there), bed.device)
        hidden = (copying + computing - rows / ours) / min(copying, computing)
        found |= {"copy_s": copying, "compute_s": computing, "overlap": max(0.0, hidden)}
    return found | utilization(bed, declared, bed.prepared(), query)


def copied(batches: list[torch.Tensor]) -> int:
    """Batches to the device, and nothing else."""
    return sum(len(batch.to("cuda", non_blocking=True)) for batch in batches)


def images(bed: Bed, precision: str) -> Result:
    """Image files to classes: CPU work and the device in one query, against a DataLoader."""
    rows = len(bed.inputs.pixels)
    files = f"SELECT bytes FROM read_files('{bed.inputs.folder}/images/*.bmp')"
    query = f"SELECT count(class) FROM ml_predict(({files}), MODEL resnet, DESCRIPTOR(bytes))"
    declared = bed.model("resnet", precision=precision)
    ours = queries(bed, rows, declared, query)
    theirs = rate(lambda: classify(bed, precision, loader(bed)), bed.device)
    found: Result = {"rows_per_s": ours, "raw_rows_per_s": theirs, "ratio": ours / theirs}
    return found | utilization(bed, declared, query)


def classify(bed: Bed, precision: str, batches: Iterable[torch.Tensor]) -> int:
    """The loop: pixels to the device, normalized there, channels-last."""
    module, rows = bed.models.pixels.to(bed.device, kind(precision)), 0
    with torch.inference_mode():
        for batch in batches:
            batch = batch.to(bed.device, non_blocking=True).to(kind(precision))
            module(batch)[0].cpu()
            rows += len(batch)
    bed.models.pixels.to("cpu", torch.float32)
    return rows


def prepared(bed: Bed) -> list[torch.Tensor]:
    """Batches that are there already, of what the query has: floats, `[rows, 224, 224, 3]`."""
    batches = bed.inputs.pixels.permute(0, 2, 3, 1).float().contiguous().split(128)
    return [batch.pin_memory() if bed.is_gpu else batch for batch in batches]


class Bitmaps(torch.utils.data.Dataset):
    """Files as the query reads them; decoding a BMP is a copy, so this peer is hard to beat."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        data = bytearray(self.paths[at].read_bytes())
        pixels = torch.frombuffer(data, dtype=torch.uint8, offset=54)
        return pixels.view(SIDE, SIDE, 3).flip(0, 2)


def loader(bed: Bed) -> Iterable[torch.Tensor]:
    """As many workers as cores, memory pinned where there is a device."""
    return torch.utils.data.DataLoader(
        Bitmaps(bed.inputs.folder / "images"),
        batch_size=128,
        num_workers=min(16, torch.get_num_threads()),
        pin_memory=bed.is_gpu,
    )


def texts(bed: Bed, precision: str) -> Result:
    """Texts to vectors, tokenizing included, against `encode` of sentence-transformers."""
    source = f"(SELECT text FROM '{bed.inputs.texts}')"
    query = f"SELECT count(embedding) FROM ml_predict({source}, MODEL texts, DESCRIPTOR(text))"
    declared = bed.model("texts", precision=precision, **TEXT_BATCH[bed.device])
    ours = queries(bed, len(bed.inputs.ids), declared, query)
    return {"rows_per_s": ours, **encoded(bed, precision, ours)} | utilization(bed, declared, query)


def encoded(bed: Bed, precision: str, ours: float) -> Result:
    """The rate of `encode`, which sorts by length, where the library is installed."""
    try:
        encoder = sentence_encoder(bed, precision)
    except ImportError as error:
        return {"not_compared": f"{error.name} is not installed here"}
    lines = bed.inputs.texts.read_text().splitlines()
    found = [json.loads(line)["text"] for line in lines]
    sizes = {"cuda": (128, 512), "cpu": (32,)}[bed.device]
    theirs = max(
        rate(lambda: len(encoder.encode(found, batch_size=size)), bed.device) for size in sizes
    )
    return {"raw_rows_per_s": theirs, "ratio": ours / theirs}


def sentence_encoder(bed: Bed, precision: str) -> object:
    """A model of the same shape, whose weights are random too."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = bed.inputs.folder / "bert"
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 256}
    file = str(bed.inputs.tokenizer)
    PreTrainedTokenizerFast(tokenizer_file=file, **special).save_pretrained(folder)
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = BertConfig(vocab_size=VOCABULARY, intermediate_size=INNER, **shape)
    BertModel(config).to(kind(precision)).save_pretrained(folder)
    words = models.Transformer(str(folder), model_kwargs={"dtype": kind(precision)})
    parts = [words, models.Pooling(WIDTH), models.Normalize()]
    return SentenceTransformer(modules=parts, device=bed.device)


def utilization(bed: Bed, *statements: str) -> Result:
    """How busy the last statement keeps a device that can tell it."""
    seen = bed.forebay.metrics(*statements) if bed.is_gpu else {}
    return {key: value for key, value in seen.items() if key == "device_utilization"}


def plan(bed: Bed) -> dict[str, Callable[[], Result]]:
    """All benches, in the order of their worth: the last ones are left out if time runs out."""
    found: dict[str, Callable[[], Result]] = {
        "MiniLM, prepared, fp32": lambda: embedding(bed, "fp32"),
        "MiniLM, prepared, bf16": lambda: embedding(bed, "bf16"),
        "ResNet-50, prepared, bf16": lambda: pixels(bed, "bf16"),
        "ResNet-50, files, bf16": lambda: images(bed, "bf16"),
        "MiniLM, texts, bf16": lambda: texts(bed, "bf16"),
        "MiniLM, prepared, fp16": lambda: embedding(bed, "fp16"),
        "MiniLM, prepared, bf16, 2 replicas": lambda: embedding(bed, "bf16", 2, raw=False),
        "MiniLM, prepared, bf16, 4 replicas": lambda: embedding(bed, "bf16", 4, raw=False),
        "ResNet-50, prepared, fp32": lambda: pixels(bed, "fp32"),
        "ResNet-50, files, fp32": lambda: images(bed, "fp32"),
        "MiniLM, texts, fp32": lambda: texts(bed, "fp32"),
    }
    if not bed.is_gpu:
        # Half precision is slower than full on a CPU, and replicas are its cores.
        found = {name: task for name, task in found.items() if name.endswith("fp32")}
    if bed.inputs.texts is None:
        found = {name: task for name, task in found.items() if "texts" not in name}
    return found


def compare_precisions(results: dict[str, Result]) -> None:
    """Adds to each result in half precision how many times the rate of full precision it is."""
    for name, found in results.items():
        full = results.get(re.sub(r"(bf16|fp16)(, \d replicas)?$", "fp32", name), {})
        if not name.endswith("fp32") and "rows_per_s" in found and "rows_per_s" in full:
            found["over_fp32"] = found["rows_per_s"] / full["rows_per_s"]


def kind(precision: str) -> torch.dtype:
    """PyTorch's name of a precision."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
