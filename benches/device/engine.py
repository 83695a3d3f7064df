"""Forebay's shell, called from a script: unpacked, with the libtorch of this PyTorch."""

import collections
import lzma
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

BINARY, LIBRARY = "forebay", "libforebay_torch.so"
ELAPSED = re.compile(r"Elapsed ([0-9.]+) seconds")
METRIC = re.compile(r"\b([a-z_]+)=([0-9][^,\]|]*)")


class SqlError(Exception):
    """A statement that failed."""


def follow(process: subprocess.Popen, first: int, after: Callable[[int], None]) -> str:
    """Waits for the end of a process, and calls `after` at the end of each statement but the first ones. Gives what
    it printed last."""
    ended, last = 0, collections.deque(maxlen=20)
    for line in process.stdout:
        last.append(line)
        if ELAPSED.search(line):
            ended += 1
            if ended > first:
                after(process.pid)
    process.wait()
    return "".join(last).strip()


def ends(text: str, most: int = 600) -> str:
    """A long message without its middle."""
    return text if len(text) <= 2 * most else f"{text[:most]} […] {text[-most:]}"


def inference(plan: str) -> dict[str, str]:
    """The metrics of the operator that runs the model."""
    line = next((line for line in plan.splitlines() if "InferenceExec" in line), None)
    if line is None:
        raise SqlError(f"the plan has no InferenceExec: {plan.strip()[-600:]}")
    return dict(METRIC.findall(line))


@dataclass
class Forebay:
    """A binary, and until when it may run."""

    folder: Path
    deadline: float
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def unpack(cls, packed: Path, folder: Path, deadline: float) -> "Forebay":
        """Unpacks `forebay.xz` and its library, or links what is not compressed."""
        for name in (BINARY, LIBRARY):
            compressed = packed / f"{name}.xz"
            if compressed.exists():
                (folder / name).write_bytes(lzma.decompress(compressed.read_bytes()))
                (folder / name).chmod(0o755)
            elif (packed / name).exists():
                (folder / name).symlink_to((packed / name).resolve())
            else:
                raise SystemExit(f"{packed} has no {name}; benches/device/pack.sh makes such a folder")
        searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        environment = {
            **os.environ,
            "FOREBAY_LIBTORCH": str(Path(torch.__file__).parent / "lib"),
            "FOREBAY_CATALOG": str(folder / "catalog"),
            # Not the empty libraries by which PyTorch is imported without CUDA's.
            "LD_LIBRARY_PATH": ":".join(path for path in searched if "stubs" not in path),
        }
        return cls(folder, deadline, environment)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def command(self, *arguments: str) -> list[str]:
        """A command line."""
        return [str(self.folder / BINARY), *arguments]

    def run(self, *arguments: str) -> tuple[str, str]:
        """What a command prints on stdout and stderr."""
        result = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, self.left),
        )
        if result.returncode != 0:
            raise SqlError(f"exit status {result.returncode}: {ends(result.stderr.strip())}")
        return result.stdout, result.stderr

    def sql(self, *statements: str, options: tuple[str, ...] = ()) -> str:
        """The rows of the statements as lines of CSV, with headers."""
        text = ";".join(statements)
        return self.run("shell", "--quiet", "--format", "csv", *options, "-c", text)[0]

    def timed(self, *statements: str, options: tuple[str, ...] = ()) -> list[float]:
        """The seconds of each statement."""
        out, err = self.run("shell", "--format", "csv", *options, "-c", ";".join(statements))
        return [float(found) for found in ELAPSED.findall(out + err)]

    def metrics(self, *statements: str, options: tuple[str, ...] = ()) -> dict[str, str]:
        """What EXPLAIN ANALYZE says of inference in the last statement."""
        analyzed = [*statements[:-1], f"EXPLAIN ANALYZE {statements[-1]}"]
        return inference(self.sql(*analyzed, options=options))

    def analyzed(self, first: list[str], query: str, *more: str) -> tuple[list[float], dict[str, str]]:
        """In one process, so that the model stays loaded: the seconds of a query and of others after it, and
        what EXPLAIN ANALYZE says of the last."""
        last = more[-1] if more else query
        statements = [*first, query, *more, f"EXPLAIN ANALYZE {last}"]
        out, err = self.run("shell", "--format", "csv", "-c", ";".join(statements))
        seconds = [float(found) for found in ELAPSED.findall(out + err)]
        return seconds[len(first) : -1], inference(out)

    def repeated(self, first: list[str], query: str, times: int, after: Callable[[int], None]) -> None:
        """Runs a query so often in one process, and calls `after` with its id each time when it has ended."""
        statements = ";".join([*first, *[query] * times])
        command = self.command("shell", "--format", "csv", "-c", statements)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, env=self.environment, text=True, **pipes) as process:
            stop = threading.Timer(max(1.0, self.left), process.kill)
            stop.start()
            try:
                said = follow(process, len(first), after)
            finally:
                stop.cancel()
                process.kill()
        if process.returncode != 0:
            raise SqlError(f"exit status {process.returncode}: {ends(said)}")

    def interrupted(self, after_s: float, *statements: str) -> tuple[float, int]:
        """How long a query goes on after SIGINT, and its exit status."""
        command = self.command("shell", "--quiet", "-c", ";".join(statements))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=self.environment, **quiet)
        try:
            time.sleep(after_s)
            if process.poll() is not None:
                raise SqlError(f"the query ended by itself ({process.returncode})")
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
            return time.monotonic() - start, process.returncode
        finally:
            process.kill()
