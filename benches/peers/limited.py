"""A cluster of Forebay's processes on this machine: a scheduler, and a worker per core that has so much memory."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engines import settings
from run import environment


@contextlib.contextmanager
def shell(binary: Path, folder: Path, memory: int) -> Iterator[list[str]]:
    """The command of a shell that runs its statements there, with as much memory; what processes write to the disk is
    in `folder`. Run it with `forebay_environment`."""
    started: list[subprocess.Popen] = []
    scratch = Path(tempfile.mkdtemp(dir=folder))
    own = forebay_environment(scratch)

    def start(*arguments: str) -> str:
        log = open(scratch / f"{len(started)}.log", "wb")
        pipes = {"stdout": subprocess.PIPE, "stderr": log, "env": own}
        started.append(subprocess.Popen([str(binary), *arguments], **pipes))
        return started[-1].stdout.readline().decode().split()[-1]

    limit = ("--memory-limit", str(memory))
    try:
        free = "127.0.0.1:0"
        scheduler = start("serve", "--bind", free, "--flight-sql", free, "--catalog", str(scratch))
        for core in range(settings.CORES):
            work = scratch / f"work-{core}"
            work.mkdir()
            worker = ("worker", "--scheduler", scheduler, "--work-dir", str(work), *limit)
            start(*worker, "--gpus", "none", "--cpus", "1")
        yield [str(binary), "shell", "--quiet", "--connect", scheduler, *limit]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def forebay_environment(scratch: Path) -> dict[str, str]:
    """Of its processes, whose temporary files are in `scratch`."""
    return {**environment("forebay"), "TMPDIR": str(scratch)}


def clear(scratch: Path) -> None:
    """What engines leave."""
    for path in scratch.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
