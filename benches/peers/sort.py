"""Sorting records from files to files, by engines that may have less memory than the records take.

    benches/peers/python benches/peers/sort.py path/to/forebay [--rounds 3] [--gigabytes 5] [--skewed]
        [--engine forebay] [--engine forebay_one] [--engine duckdb] [--engine spark]
        [--engine ray_data] [--engine ray_data_more] [--engine numpy]

The records are those of the sort benchmark (`records.py`). Each engine has all cores and 2 GB in all:

- Forebay: a scheduler and a worker per core with `--memory-limit 1GB`; a session that has 1 GB, too, of
  which it needs little. `forebay_one`: one worker of 1 GB has all cores, so nothing goes over the network.
- DuckDB: a thread per core, `memory_limit` of 2 GB, one file.
- Spark: `local[cores]` with 2 GB of heap.
- Ray Data: 30 % of 2 GB of object store, which is Ray's own share of a machine's memory. Its workers' heaps, which
  nothing bounds, come to that. `ray_data_more`: all of it is object store.
- numpy: no engine, but what the cores need for the same work with nothing around it (`bare_sort.py`).

Time is from the query to its last row written: clusters and sessions are there before. What is written must be in
order, and have all records (valsort's rules). Memory is the peak of all of an engine's processes, pages that they share
counted once. Before each run the page cache is full of pages that nobody needs. The limit of a run is what reading and
writing all bytes twice takes at the rates of this folder's disk, past the page cache (`O_DIRECT`). They are measured with
half of the bytes just before it, and with half just after it: a disk that others use is another one in each minute, and
one that gives more for a short while than for a long one is asked for long. Prints a table, and writes one JSON object
to benches/results/.
"""

import argparse
import datetime
import functools
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bare_sort
import limited
import measure
import records
from engines import settings
from run import environment, machine, say

MEMORY = 1_000_000_000
NAMES = {
    "forebay": "Forebay",
    "forebay_one": "Forebay, one worker",
    "duckdb": "DuckDB",
    "spark": "PySpark",
    "ray_data": "Ray Data",
    "ray_data_more": "Ray Data, all of it for objects",
    "numpy": "a script, bytes to bytes",
}
RAY_STORE = 0.3
DUCKDB = settings.ROOT / ".forebay/duckdb/bin/python"
CHUNK = 64 << 20

# The disk's rates are measured with this part of the records' bytes, twice.
MEASURED = 0.5


def on_forebay(source: Path, output: Path, options: argparse.Namespace, cores: int = 1) -> float:
    """A scheduler, and workers of so many cores."""
    text = (
        f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{source}/';"
        f"COPY (SELECT * FROM t ORDER BY key) TO '{output}/' STORED AS PARQUET "
        "OPTIONS ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false');"
    )
    own = limited.forebay_environment(options.scratch)
    with limited.cluster(options.forebay, options.scratch, MEMORY, cores) as cluster:
        command = [*cluster.shell, "-c", text]
        return timed(lambda: subprocess.run(command, check=True, stdout=sys.stderr, env=own))


def on_duckdb(source: Path, output: Path, options: argparse.Namespace) -> float:
    """In a process of its own environment, which has nothing else."""
    script = (
        "import duckdb, sys, time\n"
        "source, output, scratch, cores, memory = sys.argv[1:]\n"
        "db = duckdb.connect()\n"
        "db.execute(f\"SET temp_directory='{scratch}'; SET threads={cores}; \"\n"
        "           f\"SET memory_limit='{memory}B'; SET preserve_insertion_order=false; \"\n"
        "           \"SET enable_progress_bar=false\")\n"
        "start = time.perf_counter()\n"
        "db.execute(f\"COPY (SELECT * FROM '{source}/*.parquet' ORDER BY key) TO '{output}' \"\n"
        "           \"(FORMAT parquet, COMPRESSION uncompressed)\")\n"
        "print(time.perf_counter() - start)\n"
    )
    output.mkdir()
    given = [source, output / "all.parquet", options.scratch, settings.CORES]
    memory = settings.CORES * MEMORY
    command = [str(DUCKDB), "-c", script, *map(str, given), str(memory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def on_spark(source: Path, output: Path, options: argparse.Namespace) -> float:
    """One process."""
    session = limited.spark(options.scratch, settings.CORES * MEMORY)
    rows = session.read.parquet(str(source)).orderBy("key").write.option("compression", "none")
    return timed(lambda: rows.parquet(str(output)))


def on_ray(source: Path, output: Path, options: argparse.Namespace, share: float = RAY_STORE) -> float:
    """One node, with this share of memory for objects."""
    import ray

    store = round(share * settings.CORES * MEMORY)
    spill = {"object_spilling_directory": str(options.scratch)}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, object_store_memory=store, **spill)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def query() -> None:
        rows = ray.data.read_parquet(str(source)).sort("key")
        rows.write_parquet(str(output), compression="none")

    return timed(query)


def on_numpy(source: Path, output: Path, options: argparse.Namespace) -> float:
    """A process per core, over a file of nothing but records."""
    output.mkdir()
    path = bare_sort.prepare(source, options.scratch)
    return bare_sort.sort(path, options.scratch, output, settings.CORES)


def timed(query: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    query()
    return time.perf_counter() - start


ENGINES = {
    "forebay": on_forebay,
    "forebay_one": functools.partial(on_forebay, cores=settings.CORES),
    "duckdb": on_duckdb,
    "spark": on_spark,
    "ray_data": on_ray,
    "ray_data_more": functools.partial(on_ray, share=1.0),
    "numpy": on_numpy,
}


def disk(scratch: Path, size: int) -> dict[str, float]:
    """Bytes per second that files are written with and read with: past the page cache, if the file system allows it."""
    try:
        return rates(scratch / "rate", size, os.O_DIRECT)
    except OSError as error:
        say(f"past the page cache nothing is measured: {error}")
        return rates(scratch / "rate", size, 0)


def fill_page_cache(scratch: Path) -> None:
    """With pages that nobody needs, as on a machine that has been up for a while. Of a virtual machine's memory the host
    may have taken back what was free: whoever uses it first then waits longer for it than for the disk."""
    path = scratch / "hole"
    with open(path, "wb") as file:
        file.truncate(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    piece = bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def rates(path: Path, size: int, flags: int) -> dict[str, float]:
    """Of one file, which is on the disk at the end, and is read from there."""
    piece = mmap.mmap(-1, CHUNK)  # Aligned, as it must be past the page cache.
    pieces = max(1, size // CHUNK)
    piece.write(os.urandom(CHUNK))
    start = time.perf_counter()
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | flags)
    try:
        for _ in range(pieces):
            if os.write(file, piece) != CHUNK:
                raise OSError("there is no room on this disk")
        os.fsync(file)
        written = time.perf_counter() - start
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        start = time.perf_counter()
        while os.readv(file, [piece]):
            pass
        read = time.perf_counter() - start
    finally:
        os.close(file)
        path.unlink()
    return {"write_bytes_per_s": pieces * CHUNK / written, "read_bytes_per_s": pieces * CHUNK / read}


def limit(size: int, rates: list[dict[str, float]]) -> float:
    """Seconds to read and write so many bytes twice, half of them at each of these rates."""
    ways = ("read_bytes_per_s", "write_bytes_per_s")
    return sum(2 * size / found[way] for found in rates for way in ways) / len(rates)


def measured(engine: str, source: Path, output: Path, options: argparse.Namespace) -> tuple[float, int]:
    """Seconds of one engine, in a process of its own, and the peak of its memory."""
    command = [sys.executable, __file__, str(options.forebay), "--run", engine]
    command += ["--source", str(source), "--output", str(output), "--scratch", str(options.scratch)]
    said, memory = measure.watched(command, environment(engine))
    return round(float(said), 2), memory


def compare(options: argparse.Namespace, is_skewed: bool) -> dict[str, object]:
    """All rounds of all engines over one set of records."""
    count = round(options.gigabytes * 1e9) // records.RECORD
    source = records.make(count, is_skewed, options.data)
    expected = records.summary(source)
    engines = {engine: {"s": [], "pss_peak": [], "disk": [], "limit_s": []} for engine in options.engine or ENGINES}
    size, part = count * records.RECORD, round(options.gigabytes * 1e9 * MEASURED)
    for at in range(options.rounds):
        # Whoever is first finds the coldest caches, so it is somebody else each time.
        names = list(engines)
        turn = at % len(names)
        for engine in names[turn:] + names[:turn]:
            found = engines[engine]
            output = options.scratch / f"{engine}-{at}"
            if "error" in found:
                continue
            try:
                around = [disk(options.scratch, part)]
                fill_page_cache(options.scratch)
                took, memory = measured(engine, source, output, options)
                around.append(disk(options.scratch, part))
                check(records.summary(output), expected)
                found["s"].append(took)
                found["pss_peak"].append(memory)
                found["disk"].append(around)
                found["limit_s"].append(round(limit(size, around), 2))
                say(f"{engine:10} {took:8.2f} s, the disk {found['limit_s'][-1]:.2f} s, {memory / 1e6:.0f} MB")
            except (measure.RunError, OSError, ValueError) as error:
                found["error"] = str(error).strip().splitlines()[-1][:300]
                say(f"{engine:10} failed: {error}")
            limited.clear(options.scratch)
    return {"records": count, "is_skewed": is_skewed, "engines": engines}


def check(found: records.Summary, expected: records.Summary) -> None:
    """Raises if something is lost, doubled or out of order."""
    if not found.in_order:
        raise ValueError("the records are not in order")
    if (found.records, found.total) != (expected.records, expected.total):
        raise ValueError(f"{found} is not the sum of {expected}")


def table(results: list[dict]) -> str:
    """Medians, over Forebay's, and what part of each the disk's limit and the script are."""
    head = ["records", "engine", "s", "x Forebay", "the disk / time", "the script / time", "peak memory, MB"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        size = result["records"] * records.RECORD
        kind = f"{size / 1e9:g} GB{', skewed' if result['is_skewed'] else ''}"
        medians = {name: statistics.median(found["s"]) for name, found in result["engines"].items() if found["s"]}
        own, script = medians.get("forebay"), medians.get("numpy")
        for engine, found in result["engines"].items():
            if engine not in medians:
                lines.append(f"| {kind} | {NAMES[engine]} | {found.get('error')} | | | | |")
                continue
            took = medians[engine]
            share = statistics.median(least / run for least, run in zip(found["limit_s"], found["s"], strict=True))
            cells = [f"{took:.1f}", f"{took / own:.2f}" if own else "", f"{share:.2f}"]
            cells += [f"{script / took:.2f}" if script else "", f"{max(found['pss_peak']) / 1e6:.0f}"]
            lines.append(f"| {kind} | {NAMES[engine]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = limited.parser(__doc__.splitlines()[0], ENGINES)
    parser.add_argument("--skewed", action="store_true", help="also records of which half have few keys")
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.forebay, options.data = options.forebay.resolve(), options.data.resolve()
    return options


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse()
    if options.run:
        print(ENGINES[options.run](options.source, options.output, options), flush=True)
        # Without the engine's own way out.
        os._exit(0)
    options.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sort-", dir=options.data) as scratch:
        options.scratch = Path(scratch)
        results = [compare(options, False)]
        results += [compare(options, True)] if options.skewed else []
    today = datetime.date.today().isoformat()
    about = {"date": today, "machine": machine(options), "results": results}
    path = options.results / f"{today}-sort-cpu-{settings.CORES}-cores.json"
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
