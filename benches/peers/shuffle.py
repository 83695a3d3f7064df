"""Dealing all rows out by a hash of their keys, by engines that have less memory than the rows take.

    benches/peers/python benches/peers/shuffle.py path/to/forebay [--rounds 3] [--gigabytes 5]
        [--engine forebay] [--engine spark] [--engine ballista --stock path/to/cluster-bench]

The records are those of the sort benchmark (`records.py`), of 100 bytes. Two queries need all of them where those with
equal keys are:

- `distinct`: how many different records there are, of all columns. None is twice, so none is left out early.
- `join`: the records with themselves by their keys, the half with another half that is the same: as many bytes.

Each engine has all cores and 2 GB in all: Forebay is a scheduler and a worker per core with `--memory-limit 1GB`, Spark is
`local[cores]` with 2 GB of heap, stock Ballista a scheduler and an executor per core with 1 GB, all options as they come (the
executable of `cargo bench --no-run --bench cluster`; left out without `--stock`). Its limit is for what operators reserve, as
Forebay's is. Time is from the query to its rows, of which there is one; sessions and clusters are there
before. Then Forebay loses a worker to `kill -9` after half of that time, and gets another one. Memory is the peak of all
processes. Prints a table, and writes one JSON object to benches/results/.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import limited
import measure
import records
from engines import settings
from run import environment, machine, say
from sort import MEMORY, timed

# Of the last column no more is asked for than that it is there: what bytes have in functions differs.
QUERIES = {
    "distinct": "SELECT count(*) AS n, max(rest) IS NOT NULL AS found FROM (SELECT DISTINCT key, rest FROM t)",
    "join": "SELECT count(*) AS n, max(a.rest) = max(b.rest) AS found FROM half a JOIN half b ON a.key = b.key",
}
NAMES = {"forebay": "Forebay", "spark": "PySpark", "ballista": "stock Ballista"}


def halves(source: Path) -> list[Path]:
    """Every other file."""
    return sorted(source.glob("*.parquet"))[::2]


def on_forebay(options: argparse.Namespace) -> float:
    """A scheduler, and a worker for each core."""
    half = options.scratch / "half"
    half.mkdir()
    for file in halves(options.source):
        (half / file.name).hardlink_to(file)
    tables = "".join(
        f"CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{folder}/';"
        for name, folder in (("t", options.source), ("half", half))
    )
    own = limited.forebay_environment(options.scratch)
    with limited.cluster(options.forebay, options.scratch, MEMORY) as cluster:
        command = [*cluster.shell, "--format", "csv", "-c", tables + QUERIES[options.query]]
        lost = threading.Event()

        def lose() -> None:
            cluster.lose_worker()
            lost.set()

        if options.kill_after is not None:
            threading.Timer(options.kill_after, lose).start()
        found = {}

        def query() -> None:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=own)
            found["row"] = done.stdout.split()[-1]

        took = timed(query)
        if options.kill_after is not None and not lost.is_set():
            raise SystemExit("the query was over before a worker was killed")
        check(found["row"].split(","), options)
        return took


def on_spark(options: argparse.Namespace) -> float:
    """One process."""
    session = limited.spark(options.scratch, settings.CORES * MEMORY)
    session.read.parquet(str(options.source)).createOrReplaceTempView("t")
    half = session.read.parquet(*map(str, halves(options.source)))
    half.createOrReplaceTempView("half")
    found = {}

    def query() -> None:
        found["row"] = session.sql(QUERIES[options.query]).collect()[0]

    took = timed(query)
    check(found["row"], options)
    return took


def on_ballista(options: argparse.Namespace) -> float:
    """A process with a scheduler and executors."""
    files = {"t": sorted(options.source.glob("*.parquet")), "half": halves(options.source)}
    with limited.stock_ballista(options.stock, options.scratch, MEMORY) as run:
        for table, of in files.items():
            folder = options.scratch / table
            folder.mkdir()
            for file in of:
                (folder / file.name).hardlink_to(file)
            run(f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{folder}/'")
        found = {}

        def query() -> None:
            found["row"] = run(QUERIES[options.query])[-1]

        took = timed(query)
        check(found["row"].split(","), options)
        return took


def check(row: list, options: argparse.Namespace) -> None:
    """Raises if the query gave something else."""
    count = options.count if options.query == "distinct" else options.count // 2
    if int(row[0]) != count or str(row[1]).strip().lower() != "true":
        raise SystemExit(f"{options.query} gave {row} of {options.count} records")


ENGINES = {"forebay": on_forebay, "spark": on_spark, "ballista": on_ballista}


def measured(engine: str, query: str, kill_after: float | None, options: argparse.Namespace) -> tuple[float, int]:
    """Seconds of one engine, in a process of its own, and the peak of its memory."""
    command = [sys.executable, __file__, str(options.forebay), "--run", engine, "--query", query]
    command += ["--source", str(options.source), "--scratch", str(options.scratch)]
    command += ["--count", str(options.count)]
    command += ["--stock", str(options.stock)] if options.stock else []
    command += ["--kill-after", str(kill_after)] if kill_after is not None else []
    try:
        said, memory = measure.watched(command, environment(engine))
    finally:
        limited.clear(options.scratch)
    return round(float(said), 2), memory


def compare(query: str, options: argparse.Namespace) -> dict[str, dict]:
    """All rounds of all engines, and of Forebay with the loss of a worker."""
    engines = {engine: {"s": [], "pss_peak": []} for engine in options.engine or options.all}
    lost = []
    for at in range(options.rounds):
        names = list(engines)
        turn = at % len(names)
        for engine in names[turn:] + names[:turn]:
            if "failed" in engines[engine]:
                continue
            try:
                took, memory = measured(engine, query, None, options)
            except measure.RunError as error:
                if engine == "forebay":
                    raise
                engines[engine]["failed"] = str(error)[-300:]
                say(f"{query:10} {engine:10} {error}")
                continue
            engines[engine]["s"].append(took)
            engines[engine]["pss_peak"].append(memory)
            say(f"{query:10} {engine:10} {took:8.2f} s, {memory / 1e6:.0f} MB")
        if "forebay" in engines:
            took, _ = measured("forebay", query, engines["forebay"]["s"][-1] / 2, options)
            lost.append(took)
            say(f"{query:10} forebay, a worker lost {took:8.2f} s")
    if lost:
        engines["forebay"]["s_with_a_worker_lost"] = lost
    return engines


def table(results: dict[str, dict]) -> str:
    """Medians, over Forebay's."""
    lines = ["| query | engine | s | x Forebay | peak memory, MB | with a worker lost |", "|---|---|---|---|---|---|"]
    for query, engines in results.items():
        own = engines.get("forebay", {}).get("s")
        for engine, found in engines.items():
            if "failed" in found:
                lines.append(f"| {query} | {NAMES[engine]} | failed | | | |")
                continue
            took = statistics.median(found["s"])
            ratio = f"{took / statistics.median(own):.2f}" if own else ""
            lost = found.get("s_with_a_worker_lost")
            lost = f"{statistics.median(lost) / took:.2f}" if lost else ""
            memory = max(found["pss_peak"]) / 1e6
            lines.append(f"| {query} | {NAMES[engine]} | {took:.1f} | {ratio} | {memory:.0f} | {lost} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = limited.parser(__doc__.splitlines()[0], ENGINES)
    parser.add_argument("--query", choices=QUERIES, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kill-after", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--stock", type=Path, help="the executable of the bench `cluster`, which has stock Ballista")
    options = parser.parse_args()
    options.forebay, options.data = options.forebay.resolve(), options.data.resolve()
    options.all = [engine for engine in ENGINES if engine != "ballista" or options.stock]
    if "ballista" in (options.engine or ()) and options.stock is None:
        parser.error("--engine ballista needs --stock")
    return options


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse()
    if options.run:
        print(ENGINES[options.run](options), flush=True)
        # Without the engine's own way out.
        os._exit(0)
    options.count = round(options.gigabytes * 1e9) // records.RECORD
    options.data.mkdir(parents=True, exist_ok=True)
    options.source = records.make(options.count, False, options.data)
    with tempfile.TemporaryDirectory(prefix="shuffle-", dir=options.data) as scratch:
        options.scratch = Path(scratch)
        results = {query: compare(query, options) for query in QUERIES}
    today = datetime.date.today().isoformat()
    about = {"date": today, "machine": machine(options), "records": options.count, "queries": results}
    path = options.results / f"{today}-shuffle-peers-cpu-{settings.CORES}-cores.json"
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
