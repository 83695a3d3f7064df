"""Native code of PyTorch's AOTInductor beside TorchScript, in one run: MiniLM, BERT-base and ResNet-18, each
by the same query on the same package, with `allow_native` false and true.

    tools/python benches/compiled.py path/to/forebay [--rounds 5] [--packages FOLDER]

Exports the packages first, which compiles them and takes minutes, unless they are in FOLDER. The weights of
BERT-base and ResNet-18 are random, which changes nothing about how long they take. Prints one JSON object for
each: rows per second of computing on one replica as `DESCRIBE MODEL` has it, and the ratio of the two of each
round, of which the median counts; how far the results differ at most; and the largest memory of the process.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "sql-examples/data/wordnet.parquet"
IMAGES = ROOT / ".forebay/fixtures/resnet18/images"
MINILM = ROOT / ".forebay/models/source/all-minilm-l6-v2"
PROGRAMS = {"torchscript": "false", "native": "true"}
# Of what a model gives, one number a row is compared.
TOLERANCE = 1e-4
SEED = 1


@dataclass(frozen=True)
class Model:
    """What is measured."""

    name: str
    # Writes what is exported into a folder, and gives the exporter's options.
    source: Callable[[Path], list[str]]
    # Rows of what is in the row and the number that is compared, so many; the model is `m`.
    query: Callable[[int], str]
    rows: int


def minilm(_: Path) -> list[str]:
    """The demo's model."""
    return ["--source", str(MINILM)]


def bert_base(folder: Path) -> list[str]:
    """Twelve layers of 768, with MiniLM's tokenizer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    torch.manual_seed(SEED)
    words = folder / "words"
    BertModel(BertConfig()).save_pretrained(words)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (MINILM / name).exists():
            shutil.copy(MINILM / name, words / name)
    transformer = Transformer(str(words), max_seq_length=256)
    SentenceTransformer(modules=[transformer, Pooling(768)]).save(str(folder / "bert-base"))
    return ["--source", str(folder / "bert-base")]


def resnet18(folder: Path) -> list[str]:
    """Of torchvision."""
    import torch
    from torchvision import models

    torch.manual_seed(SEED)
    torch.save(models.resnet18(weights=None).state_dict(), folder / "weights.pth")
    return ["--source", "torchvision/resnet18", "--weights", str(folder / "weights.pth"), "--images"]


def of_texts(rows: int) -> str:
    """One number of each text's vector."""
    texts = f"SELECT gloss FROM '{TEXTS}' ORDER BY gloss LIMIT {rows}"
    vectors = f"SELECT gloss, ml_predict(MODEL m, gloss) AS e FROM ({texts})"
    return f"SELECT gloss, e[1] AS found FROM ({vectors}) ORDER BY gloss"


def of_images(rows: int) -> str:
    """The best score of each image."""
    files = f"SELECT url, bytes FROM read_files('{IMAGES}/*') ORDER BY url LIMIT {rows}"
    return f"SELECT url, score FROM ml_predict(({files}), MODEL m, DESCRIPTOR(bytes)) ORDER BY url"


MODELS = (
    Model("MiniLM", minilm, of_texts, 2000),
    Model("BERT-base", bert_base, of_texts, 250),
    Model("ResNet-18", resnet18, of_images, 500),
)


def export(model: Model, packages: Path) -> tuple[Path, float | None]:
    """The package, and the seconds that it took to make it; None if it was there."""
    package = packages / model.name.lower()
    if (package / "model.toml").exists():
        return package, None
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        about = ["--license", "Apache-2.0", "--name", model.name.lower(), "--compile"]
        given = [*model.source(Path(folder)), "--output", str(package), *about]
        command = [str(ROOT / "tools/python"), "-m", "forebay.export", *given]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return package, time.perf_counter() - start


def run(binary: Path, model: Model, package: Path, allow_native: str) -> dict:
    """What one process measures and computes."""
    with tempfile.TemporaryDirectory() as catalog:
        sql = (
            f"CREATE MODEL m LOCATION '{package}' WITH ('allow_native' = '{allow_native}', 'device' = 'cpu');"
            f"{model.query(model.rows)};"
            "DESCRIBE MODEL m"
        )
        command = [binary, "shell", "-q", "--maxrows", "inf", "--format", "csv", "-c", sql]
        environment = {**os.environ, "FOREBAY_CATALOG": catalog}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, text=True) as process:
            printed = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{binary} ended with {process.returncode}: {printed}")
    lines = list(csv.reader(printed.splitlines()))
    about = {(line[0], line[1]): line[2] for line in lines if len(line) == 3}
    is_native = "(native code)" in about["program", "on cpu"]
    if is_native != (allow_native == "true"):
        raise SystemExit(f"{model.name}: {about['program', 'on cpu']}")
    return {
        "rows_per_second": float(about["measured", "rows_per_second on cpu"]),
        "megabytes": usage.ru_maxrss // 1024,
        "found": [float(line[1]) for line in lines[1 : model.rows + 1]],
    }


def measure(binary: Path, model: Model, packages: Path, rounds: int) -> dict:
    """Both programs of a model, one after the other in each round."""
    package, seconds = export(model, packages)
    measured = [
        {name: run(binary, model, package, allowed) for name, allowed in PROGRAMS.items()}
        for _ in range(rounds)
    ]
    pairs = zip(measured[0]["torchscript"]["found"], measured[0]["native"]["found"], strict=True)
    worst = max(abs(expected - found) for expected, found in pairs)
    if worst > TOLERANCE:
        raise SystemExit(f"{model.name}: results differ by {worst}")
    rates = [one["native"]["rows_per_second"] / one["torchscript"]["rows_per_second"] for one in measured]
    result = {"name": f"native code beside TorchScript, {model.name}", "rows": model.rows}
    for figure in ("rows_per_second", "megabytes"):
        medians = {n: statistics.median(one[n][figure] for one in measured) for n in PROGRAMS}
        result[figure] = {name: round(value, 2) for name, value in medians.items()}
    result["ratio"] = round(statistics.median(rates), 3)
    result["ratios"] = [round(rate, 3) for rate in sorted(rates)]
    result["largest_difference"] = float(f"{worst:.1e}")
    if seconds is not None:
        result["export_seconds"] = round(seconds, 1)
    return result


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packages", type=Path, help="folder where packages are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        packages = (options.packages or Path(scratch)).resolve()
        packages.mkdir(parents=True, exist_ok=True)
        for model in MODELS:
            print(json.dumps(measure(options.forebay.resolve(), model, packages, options.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
