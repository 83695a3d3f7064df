"""Engines with so much memory: a cluster of Forebay's processes on this machine, which are a scheduler and a worker per
core, stock Ballista, and PySpark."""

import argparse
import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engines import settings
from run import environment


@dataclass
class Cluster:
    """What processes write to the disk is in `scratch`."""

    binary: Path
    scratch: Path
    memory: int
    # Of each worker.
    cores: int = 1
    scheduler: str = ""
    processes: list[subprocess.Popen] = field(default_factory=list)
    workers: list[subprocess.Popen] = field(default_factory=list)

    @property
    def limit(self) -> tuple[str, ...]:
        """Of each process that has one."""
        return ("--memory-limit", str(self.memory))

    @property
    def shell(self) -> list[str]:
        """The command of a shell that runs its statements there. Run it with `forebay_environment`."""
        return [str(self.binary), "shell", "--quiet", "--connect", self.scheduler, *self.limit]

    def start(self, *arguments: str) -> tuple[subprocess.Popen, str]:
        """A process, and the last word of its first line: where it listens, if it does."""
        log = open(self.scratch / f"{len(self.processes)}.log", "wb")
        own = forebay_environment(self.scratch)
        pipes = {"stdout": subprocess.PIPE, "stderr": log, "env": own}
        process = subprocess.Popen([str(self.binary), *arguments], **pipes)
        self.processes.append(process)
        return process, process.stdout.readline().decode().split()[-1]

    def start_scheduler(self) -> None:
        """On free ports."""
        free = ("--bind", "127.0.0.1:0", "--flight-sql", "127.0.0.1:0")
        _, self.scheduler = self.start("serve", *free, "--catalog", str(self.scratch))

    def start_worker(self) -> None:
        """With a folder of its own."""
        work = Path(tempfile.mkdtemp(prefix="work-", dir=self.scratch))
        worker = ("worker", "--scheduler", self.scheduler, "--work-dir", str(work), *self.limit)
        process, _ = self.start(*worker, "--gpus", "none", "--cpus", str(self.cores))
        self.workers.append(process)

    def lose_worker(self) -> None:
        """Kills a worker; another one comes in its place, without what that had."""
        self.workers.pop(0).kill()
        self.start_worker()

    def end(self) -> None:
        """All processes."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


@contextlib.contextmanager
def cluster(binary: Path, folder: Path, memory: int, cores: int = 1) -> Iterator[Cluster]:
    """With workers of so much memory and so many cores, as many as all cores are enough for."""
    own = Cluster(binary, Path(tempfile.mkdtemp(dir=folder)), memory, cores)
    try:
        own.start_scheduler()
        for _ in range(settings.CORES // cores):
            own.start_worker()
        yield own
    finally:
        own.end()


@contextlib.contextmanager
def stock_ballista(program: Path, scratch: Path, memory: int) -> Iterator[Callable[[str], list[str]]]:
    """What runs a statement and gives its lines of CSV, with so much memory for each core. `program` is the bench `cluster`."""
    own = {**forebay_environment(scratch), "FOREBAY_STOCK_MEMORY": str(memory)}
    log = open(scratch / "ballista.log", "wb")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
    process = subprocess.Popen([str(program), "--bench", "stock"], env=own, **pipes)

    def run(statement: str) -> list[str]:
        process.stdin.write(" ".join(statement.split()) + "\n")
        process.stdin.flush()
        lines = list(itertools.takewhile(lambda line: line != "end\n", process.stdout))
        if not lines:
            raise RuntimeError(f"{program} has ended, and says why in {log.name}")
        if lines[0].startswith("error: "):
            raise RuntimeError(lines[0].strip())
        return lines

    try:
        yield run
    finally:
        process.kill()
        process.wait()


def forebay_environment(scratch: Path) -> dict[str, str]:
    """Of its processes, whose temporary files are in `scratch`."""
    return {**environment("forebay"), "TMPDIR": str(scratch)}


def spark(scratch: Path, memory: int, options: dict[str, str] | None = None) -> "SparkSession":  # noqa: F821
    """A session of PySpark, which has come up: one process with all cores and so much heap."""
    from pyspark.sql import SparkSession

    own = {
        **(options or {}),
        "spark.driver.memory": f"{memory // 1_000_000}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
    }
    builder = SparkSession.builder.master(f"local[{settings.CORES}]")
    for key, value in own.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.range(1000).count()
    return session


def parser(about: str, engines: Iterable[str]) -> argparse.ArgumentParser:
    """The options of a bench of records, and those by which it calls itself."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("forebay", type=Path, help="the release binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--engine", action="append", choices=engines)
    parser.add_argument("--data", type=Path, default=settings.ROOT / ".forebay/bench-peers")
    parser.add_argument("--results", type=Path, default=settings.ROOT / "benches/results")
    parser.add_argument("--run", choices=engines, help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser


def clear(scratch: Path) -> None:
    """What engines leave."""
    for path in scratch.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
