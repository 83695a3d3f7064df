"""Everything dies half-way: what the work that follows takes, of the time of a whole run.

    benches/peers/python benches/peers/resumed.py path/to/forebay [--rounds 3] [--scale 1]

The workload is `accelerator` with its rows in 32 files, on clusters as in `lost.py`. Each engine runs it
undisturbed, then again until all of its processes get `kill -9` after half of that time. A new cluster goes on:
Forebay with RESUME JOB, Ray Data with its checkpoint of ids, Spark from zero, as it has nothing else. That run is
measured like the first one, from the statement to the last row written, the cluster being there. Rows are compared.
Prints a table, and writes one JSON object to benches/results/.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq

import check
import data
import lost
import measure
from engines import forebay
from engines.settings import Run
from run import environment
from workloads import ENGINES, WORKLOADS

WORKLOAD = lost.WORKLOAD
FILES = 32
BEGUN = "begun"


def timed(query: Callable[[], object]) -> float:
    """Seconds of a query; whoever kills it is told that it begins."""
    print(BEGUN, flush=True)
    start = time.perf_counter()
    query()
    return time.perf_counter() - start


def on_forebay(run: Run, binary: Path, again: bool) -> float:
    """A job that can be resumed, of a server whose state outlives it."""
    beside = run.output.with_suffix(".state")
    beside.mkdir(exist_ok=True)
    query = forebay.accelerator(run)
    table = f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{run.rows}/';"
    (beside / "init.sql").write_text(f"{table}\n{query.model.replace('TEMPORARY ', '')}\n")
    serve = ("--state", str(beside / "state"), "--init", str(beside / "init.sql"))
    with lost.forebay_cluster(binary, *serve) as cluster:

        def ask(statements: str) -> str:
            shell = [str(binary), "shell", "--quiet", "--format", "csv"]
            command = [*shell, "--connect", f"grpc://{cluster.flight}", "-c", statements]
            done = subprocess.run(command, capture_output=True, text=True, timeout=lost.LIMIT_S)
            if done.returncode != 0:
                raise RuntimeError(done.stderr[-1000:])
            return done.stdout.split()[-1]

        def query_all() -> None:
            if again:
                job = (beside / "job").read_text()
                ask(f"RESUME JOB '{job}'")
            else:
                copy = f"COPY ({query.select}) TO '{run.output}/' STORED AS PARQUET"
                options = "SET forebay.resumable = true; SET forebay.part_bytes = 1"
                job = ask(f"{options}; SUBMIT {copy}")
                (beside / "job").write_text(job)
            ask(f"WAIT FOR JOB '{job}'")

        return timed(query_all)


def on_ray(run: Run, _: Path, __: bool) -> float:
    """With a checkpoint of the ids that are written."""
    import ray
    from ray.data.checkpoint import CheckpointConfig

    cluster = lost.ray_cluster()
    checkpoint = run.output.with_suffix(".checkpoint")
    checkpoint.mkdir(exist_ok=True)
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=str(checkpoint))
    took = timed(lambda: lost.ray_query(run))
    del cluster
    return took


def on_spark(run: Run, _: Path, __: bool) -> float:
    """What the first run has written is not read."""
    query = lost.spark_query(run)
    return timed(lambda: query.mode("overwrite").parquet(str(run.output)))


CLUSTERS = {"forebay": on_forebay, "ray_data": on_ray, "spark": on_spark}


def command(engine: str, run: Run, binary: Path, again: bool) -> list[str]:
    """A run in a process of its own."""
    asked = [sys.executable, __file__, str(binary), "--engine", engine]
    asked += ["--data", str(run.data), "--output", str(run.output)]
    return [*asked, "--again"] if again else asked


def killed(asked: list[str], engine: str, after_s: float) -> None:
    """Starts a run, and kills it with all of its descendants."""
    with tempfile.TemporaryFile("w+") as log:
        pipes = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = subprocess.Popen(asked, env=environment(engine), **pipes)
        seen: set[psutil.Process] = set()
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.2):
                seen.update(measure.tree(psutil.Process(process.pid)))

        watching = threading.Thread(target=watch)
        watching.start()
        # What is printed before is of the engine's own.
        begun = any(line.strip() == BEGUN for line in process.stdout)
        time.sleep(after_s)
        over.set()
        watching.join()
        is_over = process.poll() is not None
        measure.stop({*seen, *measure.tree(psutil.Process(process.pid))} if not is_over else seen)
        process.wait()
        psutil.wait_procs(seen, timeout=measure.GRACE_S)
        if not begun or is_over:
            log.seek(0)
            raise SystemExit(f"{engine} ended before it was killed: {log.read()[-1000:]}")


def measured(engine: str, run: Run, binary: Path, again: bool = False) -> float:
    """Seconds of a run to its end."""
    return float(measure.apart(command(engine, run, binary, again), environment(engine)))


def split(source: Path, folder: Path) -> Path:
    """The same rows in more files, as those of a long job are."""
    shutil.copytree(source / "models", folder / "models")
    (folder / "rows").mkdir()
    table = pq.read_table(source / "rows")
    size = -(-len(table) // FILES)
    for at in range(FILES):
        pq.write_table(table.slice(at * size, size), folder / f"rows/{at}.parquet")
    return folder


def compare(options: argparse.Namespace) -> dict[str, object]:
    """All rounds of all engines."""
    rows = WORKLOADS[WORKLOAD].scaled(options.scale)
    engines = {engine: {"whole_s": [], "resumed_s": []} for engine in CLUSTERS}
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as scratch:
        folder = split(data.make(WORKLOAD, rows, options.data), Path(scratch, "data"))
        reference = None
        for at in range(options.rounds):
            for engine, found in engines.items():
                whole = Run(WORKLOAD, folder, Path(scratch, f"{engine}-{at}-whole"), False)
                took = measured(engine, whole, options.forebay)
                reference = reference or whole.output
                check.agree(reference, whole.output, WORKLOAD)
                found["whole_s"].append(round(took, 3))
                run = Run(WORKLOAD, folder, Path(scratch, f"{engine}-{at}"), False)
                killed(command(engine, run, options.forebay, False), engine, took / 2)
                rest = measured(engine, run, options.forebay, True)
                found["resumed_s"].append(round(rest, 3))
                try:
                    check.agree(reference, run.output, WORKLOAD)
                except check.Disagreement as error:
                    found["wrong"] = str(error)
                print(f"{engine:10} {took:8.2f} s, resumed {rest:8.2f} s", file=sys.stderr, flush=True)
    return {"name": "everything killed half-way", "rows": rows, "engines": engines}


def table(result: dict) -> str:
    """Medians."""
    lines = ["| engine | a whole run, s | resumed, s | ratio | rows |", "|---|---|---|---|---|"]
    for engine, found in result["engines"].items():
        whole, rest = (statistics.median(found[key]) for key in ("whole_s", "resumed_s"))
        right = found.get("wrong", "equal")
        lines.append(f"| {ENGINES[engine]} | {whole:.2f} | {rest:.2f} | {rest / whole:.2f} | {right} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = lost.parser(__doc__.splitlines()[0], CLUSTERS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.forebay, options.data = options.forebay.resolve(), options.data.resolve()
    if options.engine:
        run = Run(WORKLOAD, options.data, options.output, False)
        print(CLUSTERS[options.engine](run, options.forebay, options.again), flush=True)
        os._exit(0)
    result = compare(options)
    lost.keep("resumed", result, options)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
