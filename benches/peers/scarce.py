"""The memory experiment of the streaming batch model (arXiv 2501.12407, figure 9), at a tenth.

    benches/peers/python benches/peers/scarce.py [--limits 600 800 1000 1200 1400 1600]
        [--engine forebay] [--engine ray_data] [--engine spark]

160 loads of 0.5 s give 500 rows of 100 kB each; 100 rows take 50 ms of CPU work, and 50 ms of one of 4
accelerators. 8 cores are pretended: all of this sleeps. The ideal is 15 s. Of the memory limit in MB,
400 are what eight loads hold themselves; the rest is for rows between operators.

- Forebay: `cargo bench --bench cluster -- memory`, which also has its mechanisms off, one at a time.
- Ray Data: the rest is the object store. Blocks of 10 MB, accelerators as a resource, four actors.
- Spark: a stage has one resource profile and ends before the next, so loads, work and accelerators are
  one task each, and the slots of the accelerators are locks. The rest is the heap, of which Spark
  wants 450 MiB before it starts.

Writes one JSON object to benches/results/, and prints a table of times over the ideal.
"""

import argparse
import datetime
import fcntl
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import measure
from engines import settings
from run import environment

LOADS, LOAD_S = 160, 0.5
ROWS, BATCH_ROWS, ROW_BYTES = 500, 100, 100_000
BATCH_S = 0.05
CORES, DEVICES = 8, 4
IDEAL_S = 15.0
LOADS_HOLD_MB = CORES * ROWS * ROW_BYTES // 1_000_000
LIMITS_MB = (600, 800, 1000, 1200, 1400, 1600)
WHOLE = LOADS * ROWS * ROW_BYTES


def load(ids: pa.Table) -> Iterator[pa.Table]:
    """The rows of each id, in batches: parts of one noise, so that a load costs its time."""
    noise = np.random.default_rng(7).bytes(BATCH_ROWS * ROW_BYTES)
    offsets = pa.array(np.arange(BATCH_ROWS + 1, dtype=np.int32) * ROW_BYTES)
    payload = pa.Array.from_buffers(
        pa.binary(), BATCH_ROWS, [None, offsets.buffers()[1], pa.py_buffer(noise)]
    )
    for _ in range(ids.num_rows):
        time.sleep(LOAD_S)
        for _ in range(ROWS // BATCH_ROWS):
            yield pa.table({"payload": payload})


def work(rows: pa.Table) -> pa.Table:
    """The CPU work in front of the accelerator."""
    time.sleep(BATCH_S)
    return rows


def total(rows: pa.Table) -> pa.Table:
    """What is left of a batch."""
    return pa.table({"bytes": [pc.sum(pc.binary_length(rows["payload"])).as_py()]})


class Device:
    """An accelerator of one's own."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        time.sleep(BATCH_S)
        return total(rows)


def on_ray(limit_mb: int) -> float:
    """Ray Data on one node."""
    import ray
    from ray.data import ActorPoolStrategy

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = BATCH_ROWS * ROW_BYTES
    ray.init(
        # Not a cluster that somebody left.
        address="local",
        num_cpus=CORES,
        resources={"device": DEVICES},
        object_store_memory=(limit_mb - LOADS_HOLD_MB) * 1_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    # A batch is a block. With a batch size, blocks are put together until one task has as many rows:
    # all loads become two tasks.
    arrow = {"batch_format": "pyarrow", "batch_size": None}
    start = time.perf_counter()
    rows = ray.data.range(LOADS, override_num_blocks=LOADS)
    rows = rows.map_batches(load, **arrow)
    rows = rows.map_batches(work, **arrow)
    device = {"num_cpus": 0, "resources": {"device": 1}}
    rows = rows.map_batches(Device, compute=ActorPoolStrategy(size=DEVICES), **device, **arrow)
    check(rows.sum("bytes"))
    return time.perf_counter() - start


def on_spark(limit_mb: int) -> float:
    """Spark on one node."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]")
    options = {
        "spark.driver.memory": f"{limit_mb - LOADS_HOLD_MB}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Python workers start with the first task of each core.
    session.range(CORES, numPartitions=CORES).mapInArrow(lambda ids: ids, "id long").count()

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            for rows in load(pa.Table.from_batches([ids])):
                rows = work(rows)
                with slot():
                    rows = Device()(rows)
                yield from rows.to_batches()

    start = time.perf_counter()
    rows = session.range(LOADS, numPartitions=LOADS).mapInArrow(task, "bytes long")
    check(rows.groupBy().sum("bytes").collect()[0][0])
    return time.perf_counter() - start


class slot:  # noqa: N801
    """One of the accelerators, for all processes."""

    def __enter__(self) -> None:
        folder = Path(tempfile.gettempdir())
        for at in itertools.cycle(range(DEVICES)):
            self.file = open(folder / f"forebay-bench-device-{at}", "a")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self.file.close()
                time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def check(found: int) -> None:
    """No row is lost, none is there twice."""
    if found != WHOLE:
        raise SystemExit(f"the rows have {found} bytes, expected {WHOLE}")


PEERS = {"ray_data": on_ray, "spark": on_spark}


def of_peer(engine: str, limit_mb: int) -> dict[str, dict]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--run", engine, str(limit_mb)]
    try:
        seconds = round(float(measure.apart(command, environment(engine))), 2)
    except measure.RunError as error:
        return {engine: {"error": reason(str(error))}}
    return {engine: {"seconds": seconds, "ratio": round(seconds / IDEAL_S, 2)}}


def reason(said: str) -> str:
    """The line of a failure that says most."""
    lines = [line.strip() for line in said.strip().splitlines()]
    return next((line for line in reversed(lines) if "Exception" in line), lines[-1])[:300]


def of_forebay(limit_mb: int) -> dict[str, dict]:
    """All variants of the cluster bench."""
    command = ["cargo", "bench", "--bench", "cluster", "--", f"memory_{limit_mb}"]
    own = {"cwd": settings.ROOT, "env": environment("forebay")}
    done = subprocess.run(command, capture_output=True, text=True, **own)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    keys = ("seconds", "ratio", "block_mb_peak", "error")
    return {
        "forebay, " + entry["name"].rsplit(", ", 1)[1]: {k: entry[k] for k in keys if k in entry}
        for entry in found
    }


def table(results: dict[str, dict[int, dict]]) -> str:
    """Times over the ideal."""
    limits = sorted({limit for found in results.values() for limit in found})
    head = "".join(f" {limit / 1000:.1f} GB |" for limit in limits)
    lines = [f"| engine |{head}", "|---" * (len(limits) + 1) + "|"]
    for engine, found in results.items():
        cells = [found.get(limit, {}).get("ratio", "fails") for limit in limits]
        lines.append(f"| {engine} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limits", type=int, nargs="+", default=LIMITS_MB, choices=LIMITS_MB)
    parser.add_argument("--engine", choices=("forebay", *PEERS), action="append")
    parser.add_argument("--results", type=Path, default=settings.ROOT / "benches/results")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        engine, limit = options.run
        print(PEERS[engine](int(limit)), flush=True)
        # Without the engine's own way out, which takes long.
        os._exit(0)
    results: dict[str, dict[int, dict]] = {}
    for limit in options.limits:
        for engine in options.engine or ("forebay", *PEERS):
            found = of_forebay(limit) if engine == "forebay" else of_peer(engine, limit)
            for name, entry in found.items():
                results.setdefault(name, {})[limit] = entry
                print(f"{name:40} {limit:6} MB {entry}", file=sys.stderr, flush=True)
    today = datetime.date.today().isoformat()
    whole = {
        "checkout": settings.checkout(),
        "name": "figure 9 at a tenth",
        "ideal_s": IDEAL_S,
        "limit_mb": results,
    }
    path = options.results / f"{today}-scarce-cpu-{settings.CORES}-cores.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
