"""From start to result, in one run: `forebay shell` against a sentence-transformers script.

    tools/python benches/start.py path/to/forebay [--rounds 3]

Prints one JSON object per measurement and a table of ratios. Both sides are whole processes, so
imports, loading and printing count; rounds are interleaved and medians compared.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "sql-examples/data/wordnet.parquet"
ROWS = 8000
PACKAGE = ".forebay/models/all-minilm-l6-v2"
SOURCE = ".forebay/models/source/all-minilm-l6-v2"

FOREBAY_SQL = f"""
CREATE TEMPORARY MODEL minilm LOCATION '{PACKAGE}';
SELECT count(e), sum(e[1]) FROM (
  SELECT ml_predict(MODEL minilm, gloss) AS e FROM (SELECT gloss FROM '{TEXTS}' LIMIT {ROWS}));
"""

# The peer reads lines of JSON: it gets the rows without paying for a Parquet library.
PYTHON_SCRIPT = f"""
import json, sys
from sentence_transformers import SentenceTransformer
texts = [json.loads(line)["gloss"] for line in open(sys.argv[1])]
model = SentenceTransformer({SOURCE!r}, device="cpu")
vectors = model.encode(texts, batch_size=32, normalize_embeddings=True)
print(len(vectors), vectors[:, 0].sum())
"""


def seconds(command: list[str]) -> float:
    """Wall time of a process that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def compare(name: str, ours: list[str], theirs: list[str], rounds: int) -> dict[str, object]:
    """Interleaved rounds of two commands."""
    times: dict[str, list[float]] = {"forebay": [], "peer": []}
    for _ in range(rounds):
        times["forebay"].append(seconds(ours))
        times["peer"].append(seconds(theirs))
    medians = {side: statistics.median(values) for side, values in times.items()}
    return {
        "name": name,
        "seconds": {side: [round(v, 3) for v in values] for side, values in times.items()},
        "ratio": round(medians["forebay"] / medians["peer"], 3),
    }


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    binary = str(options.forebay.resolve())
    shell = [binary, "shell", "-q", "-c", FOREBAY_SQL]
    with tempfile.TemporaryDirectory() as folder:
        lines = f"{folder}/texts.json"
        copy = f"COPY (SELECT gloss FROM '{TEXTS}' LIMIT {ROWS}) TO '{lines}' STORED AS JSON"
        seconds([binary, "shell", "-q", "-c", copy])
        script = [sys.executable, "-c", PYTHON_SCRIPT, lines]
        result = compare("start to last row of 8,000 texts", shell, script, options.rounds)
    print(json.dumps(result))
    start = [seconds([binary, "shell", "-q", "-c", "select 1"]) for _ in range(11)]
    median_ms = round(1000 * statistics.median(start), 1)
    print(json.dumps({"name": "start of the shell (select 1)", "median_ms": median_ms}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
