"""A worker that is killed half-way: how much longer a query takes, and whether its rows are the same.

    benches/peers/python benches/peers/lost.py path/to/forebay [--rounds 3] [--scale 1] [--scheduler]

The workload is `accelerator`, on a cluster of two workers of a core each and one emulated device, on
this machine: Forebay, Ray (`ray.cluster_utils`) and Spark (`local-cluster`). Each engine runs it
undisturbed, then again and loses a CPU worker to `kill -9` after half of that time. Time is from the
query's start to its last row written; the cluster is there before. With `--scheduler` it is Forebay's scheduler, which
has a journal on disk and is started again at once, that is lost, and nobody else takes part: the others have nothing of the
kind. Prints a table, and writes one JSON object to benches/results/.
"""

import argparse
import contextlib
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

import check
import data
import measure
from engines import forebay, settings
from engines.settings import Run
from run import environment
from workloads import ENGINES, WORKLOADS

WORKLOAD = "accelerator"
NODES = 2
LIMIT_S = 900


def timed(query: Callable[[], object], kill: Callable[[], object], after_s: float | None) -> float:
    """Seconds of a query, during which something is killed."""
    killed = threading.Event()

    def strike() -> None:
        kill()
        killed.set()

    timer = threading.Timer(after_s or 0, strike)
    start = time.perf_counter()
    if after_s is not None:
        timer.start()
    query()
    took = time.perf_counter() - start
    if after_s is not None and not killed.is_set():
        raise SystemExit("the query was over before a worker was killed")
    return took


@dataclass
class ForebayCluster:
    """Where its scheduler and its Flight SQL server listen, and a worker that may be lost."""

    scheduler: str
    flight: str
    worker: subprocess.Popen
    lose_scheduler: Callable[[], None]


@contextlib.contextmanager
def forebay_cluster(binary: Path, *serve: str) -> Iterator[ForebayCluster]:
    """A scheduler, two workers, and one with the device."""
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> str:
        command = [str(binary), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        return listening(started[-1])

    def listening(process: subprocess.Popen) -> str:
        return process.stdout.readline().decode().split()[-1]

    with tempfile.TemporaryDirectory() as scratch:
        try:
            free = "127.0.0.1:0"
            serve = ("serve", "--catalog", scratch, *serve)
            scheduler = start(*serve, "--bind", free, "--flight-sql", free)
            flight = listening(started[-1])

            def lose_scheduler() -> None:
                started[0].kill()
                started[0].wait()
                start(*serve, "--bind", scheduler, "--flight-sql", flight)

            worker = ("worker", "--scheduler", scheduler, "--work-dir", scratch, "--gpus", "none")
            for _ in range(NODES):
                start(*worker, "--cpus", "1")
            lost = started[-1]
            start(*worker, "--cpus", "1", "--emulated-accelerators", "1")
            yield ForebayCluster(scheduler, flight, lost, lose_scheduler)
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


def on_forebay(run: Run, binary: Path, after_s: float | None) -> float:
    """A session that is part of the cluster."""
    with forebay_cluster(binary) as cluster:
        return in_session(run, binary, cluster, cluster.worker.kill, after_s)


def on_journal(run: Run, binary: Path, after_s: float | None) -> float:
    """The same, of a scheduler that is killed and started again."""
    state = run.output.with_suffix(".state")
    with forebay_cluster(binary, "--state", str(state)) as cluster:
        return in_session(run, binary, cluster, cluster.lose_scheduler, after_s)


def in_session(
    run: Run,
    binary: Path,
    cluster: ForebayCluster,
    lose: Callable[[], None],
    after_s: float | None,
) -> float:
    """Seconds of the shell that runs the query."""
    shell = forebay.command(binary, run)
    # The device is the worker's, not the shell's.
    at = shell.index("--emulated-accelerators")
    shell[at : at + 2] = ["--connect", cluster.scheduler]
    quiet = {"stdout": subprocess.DEVNULL, "check": True, "timeout": LIMIT_S}
    return timed(lambda: subprocess.run(shell, **quiet), lose, after_s)


def ray_cluster() -> list[object]:
    """The nodes of two, beside a head with the device and without cores."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "resources": {"device": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(NODES)]
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return [cluster, *nodes]


def ray_query(run: Run) -> None:
    """Hashes in tasks, the device in an actor."""
    from engines import ray_data

    hashed = ray_data.hashes(run)
    found = ray_data.device(hashed, settings.SERVICE_ROWS, resources={"device": 1})
    found.write_parquet(str(run.output), ray_remote_args=ray_data.SMALL)


def on_ray(run: Run, _: Path, after_s: float | None) -> float:
    """One of the two nodes is lost."""
    cluster, node, *_ = ray_cluster()
    lose = lambda: cluster.remove_node(node, allow_graceful=False)  # noqa: E731
    return timed(lambda: ray_query(run), lose, after_s)


def spark_query(run: Run) -> object:
    """What writes, on two executors of a core each."""
    from engines import spark

    session = spark.session(run, master=f"local-cluster[{NODES},1,1024]")
    # Executors start with the first job.
    session.range(NODES * 100, numPartitions=NODES * 4).count()
    return spark.accelerator(run).write


def on_spark(run: Run, _: Path, after_s: float | None) -> float:
    """One of the two executors is lost."""
    query = spark_query(run)
    return timed(lambda: query.parquet(str(run.output)), lose_executor, after_s)


def lose_executor() -> None:
    """Kills an executor with its Python workers, as the loss of a machine would."""
    children = psutil.Process().children(recursive=True)
    executor = next((child for child in children if is_executor(child)), None)
    if executor is None:
        raise RuntimeError(f"no executor of Spark is among {len(children)} processes")
    for process in [executor, *executor.children(recursive=True)]:
        process.send_signal(signal.SIGKILL)


def is_executor(process: psutil.Process) -> bool:
    """Whether it runs tasks of Spark."""
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:
        return False


CLUSTERS = {"forebay": on_forebay, "ray_data": on_ray, "spark": on_spark}
WITH_JOURNAL = {"with a journal": on_journal}


def measured(engine: str, run: Run, binary: Path, after_s: float | None) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, str(binary), "--engine", engine]
    command += ["--data", str(run.data), "--output", str(run.output)]
    command += ["--kill-after", str(after_s)] if after_s is not None else []
    return float(measure.apart(command, environment(engine)))


def compare(options: argparse.Namespace) -> dict[str, object]:
    """All rounds of all engines."""
    rows = WORKLOADS[WORKLOAD].scaled(options.scale)
    folder = data.make(WORKLOAD, rows, options.data)
    names = WITH_JOURNAL if options.scheduler else CLUSTERS
    engines = {engine: {"undisturbed_s": [], "disturbed_s": []} for engine in names}
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as scratch:
        reference = None
        for at in range(options.rounds):
            for engine, found in engines.items():
                after_s = None
                for kind, times in found.items():
                    output = Path(scratch) / f"{engine}-{at}-{kind}"
                    run = Run(WORKLOAD, folder, output, False)
                    took = measured(engine, run, options.forebay, after_s)
                    reference = reference or output
                    check.agree(reference, output, WORKLOAD)
                    times.append(round(took, 3))
                    after_s = took / 2
                    print(f"{engine:10} {kind:14} {took:8.2f} s", file=sys.stderr, flush=True)
    what = "a scheduler" if options.scheduler else "a worker"
    return {"name": f"{what} killed half-way", "rows": rows, "engines": engines}


def table(result: dict) -> str:
    """Medians."""
    lines = ["| engine | undisturbed, s | disturbed, s | ratio |", "|---|---|---|---|"]
    for engine, found in result["engines"].items():
        plain, lost = (statistics.median(times) for times in found.values())
        lines.append(f"| {ENGINES.get(engine, engine)} | {plain:.2f} | {lost:.2f} | {lost / plain:.2f} |")
    return "\n".join(lines)


def parser(about: str, engines: Iterable[str]) -> argparse.ArgumentParser:
    """The options of a bench of clusters, and those by which it calls itself."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("forebay", type=Path, help="the release binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full number of rows")
    parser.add_argument("--data", type=Path, default=settings.ROOT / ".forebay/bench-peers")
    parser.add_argument("--results", type=Path, default=settings.ROOT / "benches/results")
    parser.add_argument("--engine", choices=engines, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    return parser


def keep(name: str, result: dict, options: argparse.Namespace) -> None:
    """Writes a result to its file."""
    today = datetime.date.today().isoformat()
    path = options.results / f"{today}-{name}-cpu-{settings.CORES}-cores.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"checkout": settings.checkout(), **result}, indent=1) + "\n")


def main() -> int:
    """Runs the command line; returns the exit code."""
    asked = parser(__doc__.splitlines()[0], CLUSTERS | WITH_JOURNAL)
    asked.add_argument("--kill-after", type=float, help=argparse.SUPPRESS)
    asked.add_argument("--scheduler", action="store_true", help="what is lost is the scheduler")
    options = asked.parse_args()
    options.forebay, options.data = options.forebay.resolve(), options.data.resolve()
    if options.engine:
        run = Run(WORKLOAD, options.data, options.output, False)
        query = (CLUSTERS | WITH_JOURNAL)[options.engine]
        took = query(run, options.forebay, options.kill_after)
        print(took, flush=True)
        # Without the engine's own way out, which waits for who was killed.
        os._exit(0)
    result = compare(options)
    keep("lost-scheduler" if options.scheduler else "lost", result, options)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
