"""TPC-H's 22 queries, by engines that have less memory than the tables take.

    benches/peers/python benches/peers/tpch.py path/to/forebay [--scale 10] [--rounds 1]
        [--engine forebay] [--engine duckdb] [--engine spark] [--engine ballista --stock path/to/cluster-bench]

The tables are of `tpchgen-cli`, in Parquet files as it writes them, compressed; the queries are the specification's, with its
values for validation (`tests/cluster/tpch`). Each engine has all cores and 4 GB in all:

- Forebay: a scheduler and a worker per core with `--memory-limit 2GB`, and a shell for each query.
- DuckDB: a thread per core, `memory_limit` of 4 GB.
- Spark: `local[cores]` with 4 GB of heap.
- Ballista, stock: a scheduler and an executor per core with 2 GB, all options as they come (the executable of
  `cargo bench --no-run --bench cluster`; left out without `--stock`).

Time is from a query to its last row; sessions and clusters are there before, but Forebay's includes the start of its shell, and
that of making its tables. Each result is compared with DuckDB's. Prints a table, and writes one JSON object
to benches/results/.
"""

import argparse
import csv
import datetime
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import limited
from engines import settings
from run import environment, machine, say
from tpch_run import ENGINES, QUERIES, TABLES

NAMES = {"forebay": "Forebay", "duckdb": "DuckDB", "spark": "PySpark", "ballista": "stock Ballista"}
DUCKDB = settings.ROOT / ".forebay/duckdb/bin/python"
FILES = 8
# Sums of numbers differ with their order.
TOLERANCE = 1e-6


def make(scale: float, folder: Path) -> Path:
    """The folder with the tables; made only if it is not there."""
    home = folder / f"tpch-{scale:g}"
    if home.exists():
        return home
    partial = folder / f"{home.name}-partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    generator = Path(sys.executable).parent / "tpchgen-cli"
    for table in TABLES:
        parts = 1 if table in ("nation", "region") else FILES
        command = [generator, "parquet", f"--tables={table}", f"--scale-factor={scale:g}"]
        command += [f"--output-dir={partial}", f"--parts={parts}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    partial.rename(home)
    return home


def measured(engine: str, options: argparse.Namespace, output: Path) -> dict[str, float | str]:
    """Seconds of each query of one engine, in a process of its own."""
    python = str(DUCKDB) if engine == "duckdb" else sys.executable
    output.mkdir()
    program = options.stock if engine == "ballista" else options.forebay
    given = [program, options.scale, options.source, output, options.scratch]
    command = [python, Path(__file__).with_name("tpch_run.py"), engine, *map(str, given)]
    subprocess.run(command, check=True, env=environment(engine))
    return json.loads((output / "seconds.json").read_text())


def read(path: Path) -> list[list[float | str]]:
    """Rows in an order that does not depend on the last digits of numbers."""
    with open(path, newline="") as file:
        rows = [[cell(value) for value in row] for row in csv.reader(file)]
    return sorted(rows, key=lambda row: [f"{v:.3g}" if isinstance(v, float) else v for v in row])


def cell(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value.strip()


def differs(one: Path, other: Path) -> str | None:
    """What is different, if anything is."""
    ours, theirs = read(one), read(other)
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, expected {len(theirs)}"

    def is_same(a: float | str, b: float | str) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.006)
        return a == b

    for found, expected in zip(ours, theirs, strict=True):
        if len(found) != len(expected) or not all(map(is_same, found, expected)):
            return f"{found}, expected {expected}"
    return None


def compare(options: argparse.Namespace) -> dict[str, dict]:
    """All rounds of all engines; results are compared with DuckDB's."""
    found = {engine: {"rounds": [], "wrong": {}} for engine in options.engine or options.all}
    if "duckdb" not in found:
        say("results are compared with nothing: DuckDB is not among the engines")
    for at in range(options.rounds):
        names = list(found)
        # The one that others are compared with is first in the first round.
        turn = at % len(names)
        for engine in names[turn:] + names[:turn]:
            say(f"{engine}, round {at}")
            output = options.results_of / f"{engine}-{at}"
            found[engine]["rounds"].append(measured(engine, options, output))
            limited.clear(options.scratch)
            for number in QUERIES:
                ours, theirs = output / f"{number}.csv", options.results_of / f"duckdb-0/{number}.csv"
                if ours.exists() and theirs.exists() and (why := differs(ours, theirs)):
                    found[engine]["wrong"][number] = why
                    say(f"{engine}, query {number}: {why}")
    return found


def table(found: dict[str, dict]) -> str:
    """Medians of each query, and the sum of those that all have done."""
    lines = [f"| query | {' | '.join(NAMES[engine] for engine in found)} |", "|---" * (len(found) + 1) + "|"]
    sums = dict.fromkeys(found, 0.0)
    for number in QUERIES:
        times = {}
        for engine, of in found.items():
            seconds = [of_round[str(number)] for of_round in of["rounds"]]
            times[engine] = None if any(isinstance(s, str) for s in seconds) else statistics.median(seconds)
        if all(times.values()):
            for engine, seconds in times.items():
                sums[engine] += seconds
        cells = [f"{seconds:.2f}" if seconds else "failed" for seconds in times.values()]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    lines.append(f"| all that each did | {' | '.join(f'{total:.1f}' for total in sums.values())} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path, help="the release binary")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=10.0)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--stock", type=Path, help="the executable of the bench `cluster`, which has stock Ballista")
    parser.add_argument("--data", type=Path, default=settings.ROOT / ".forebay/bench-peers")
    parser.add_argument("--results", type=Path, default=settings.ROOT / "benches/results")
    options = parser.parse_args()
    options.forebay, options.data = options.forebay.resolve(), options.data.resolve()
    options.all = [engine for engine in ENGINES if engine != "ballista" or options.stock]
    if "ballista" in (options.engine or ()) and options.stock is None:
        parser.error("--engine ballista needs --stock")
    return options


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse()
    options.data.mkdir(parents=True, exist_ok=True)
    options.source = make(options.scale, options.data)
    with tempfile.TemporaryDirectory(prefix="tpch-", dir=options.data) as folder:
        options.scratch, options.results_of = Path(folder) / "scratch", Path(folder)
        options.scratch.mkdir()
        found = compare(options)
    today = datetime.date.today().isoformat()
    about = {"date": today, "machine": machine(options), "scale": options.scale, "engines": found}
    path = options.results / f"{today}-tpch-{options.scale:g}-cpu-{settings.CORES}-cores.json"
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(table(found))
    failed = any(isinstance(s, str) for of in found.values() for run in of["rounds"] for s in run.values())
    return 1 if failed or any(of["wrong"] for of in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
