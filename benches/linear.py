"""A model's linear layers by MKL, by oneDNN and in blocks, in one run: the same query with `FOREBAY_LINEAR` set to
each, and unset.

    tools/python benches/linear.py path/to/forebay [--rounds 5] [--rows 2000]

Prints one JSON object: rows per second of computing on one replica as `DESCRIBE MODEL` has it, the whole
process's seconds, those of its cores, and its largest memory. Ratios are over MKL of the same round, which
are interleaved; the median counts. Those of cores tell more on a busy machine. What the model computes must
agree.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE, Popen

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "sql-examples/data/wordnet.parquet"
PACKAGE = ".forebay/models/all-minilm-l6-v2"
KERNELS = ("mkl", "onednn", "blocks", "measured")


def run(binary: Path, kernels: str, rows: int) -> dict[str, float]:
    """What one process measures and computes."""
    with tempfile.TemporaryDirectory() as catalog:
        sql = (
            f"CREATE MODEL minilm LOCATION '{PACKAGE}';"
            "SELECT sum(e[1]), sum(e[384]) FROM (SELECT ml_predict(MODEL minilm, gloss) AS e "
            f"FROM (SELECT gloss FROM '{TEXTS}' LIMIT {rows}));"
            "DESCRIBE MODEL minilm"
        )
        command = [binary, "shell", "-q", "--format", "csv", "-c", sql]
        environment = {**os.environ, "FOREBAY_LINEAR": kernels, "FOREBAY_CATALOG": catalog}
        start = time.perf_counter()
        with Popen(command, cwd=ROOT, env=environment, stdout=PIPE, text=True) as process:
            printed = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"{binary} ended with {process.returncode}: {printed}")
    lines = list(csv.reader(printed.splitlines()))
    measured = next(line for line in lines if line and line[0] == "measured")
    return {
        "rows_per_second": float(measured[2]),
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss // 1024,
        "sums": [float(number) for number in lines[1]],
    }


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    rounds = [
        {kernels: run(options.forebay.resolve(), kernels, options.rows) for kernels in KERNELS}
        for _ in range(options.rounds)
    ]
    result = {"name": "linear layers of all-MiniLM-L6-v2 by MKL, oneDNN and in blocks", "rows": options.rows}
    for figure in ("rows_per_second", "seconds", "cpu_seconds", "megabytes"):
        medians = {k: statistics.median(one[k][figure] for one in rounds) for k in KERNELS}
        result[figure] = {kernels: round(value, 2) for kernels, value in medians.items()}
    for kernels in KERNELS[1:]:
        ratios = [one[kernels]["rows_per_second"] / one["mkl"]["rows_per_second"] for one in rounds]
        result[f"speed_up_{kernels}"] = round(statistics.median(ratios), 3)
        result[f"speed_ups_{kernels}"] = [round(ratio, 3) for ratio in sorted(ratios)]
        ratios = [one["mkl"]["cpu_seconds"] / one[kernels]["cpu_seconds"] for one in rounds]
        result[f"speed_up_of_cores_{kernels}"] = round(statistics.median(ratios), 3)
        for one in rounds:
            pairs = zip(one["mkl"]["sums"], one[kernels]["sums"], strict=True)
            if any(abs(expected - found) > 1e-5 * options.rows for expected, found in pairs):
                raise SystemExit(f"results differ: {one}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
