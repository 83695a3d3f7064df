"""One run of one engine: its time, and the memory of all of its processes."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path

import psutil

from engines.settings import WRITTEN

# Looking costs the cores that are measured: often in the first second, in which a short run ends, and
# less often later. Shares of pages take ten times as long to sum up as sizes, and hold back what the
# process maps meanwhile: that is done each eighth time, and after the first second also when the sizes
# have grown by so much since.
EARLY_S, EARLY_SAMPLES, SAMPLE_S = 0.05, 20, 0.25
SHARES_EVERY, SHARES_GROWTH = 8, 1.2
LIMIT_S = 1800
GRACE_S = 10


@dataclass
class Measurement:
    """What one run took. Memory is the sum over the process and all of its descendants.

    `rss` counts a page once for every process that maps it, `pss` once in all. Between two looks the
    peak of a single process is known to the kernel; that of a sum is not.
    """

    seconds: float
    seconds_exit: float
    rss_peak: int
    pss_peak: int
    cpu_seconds: float

    def as_json(self) -> dict[str, float]:
        """For the result file."""
        return {key: round(value, 3) for key, value in asdict(self).items()}


class RunError(Exception):
    """An engine that did not finish; the message ends with what it printed last."""


@dataclass
class Sampler:
    """Follows a process tree from a thread of its own."""

    process: psutil.Process
    rss_peak: int = 0
    pss_peak: int = 0
    rss_at_shares: int = 0
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Samples until it is stopped or the process has gone."""
        count = 0
        while not self.stopped.is_set():
            growth = inf if count < EARLY_SAMPLES else SHARES_GROWTH
            self.sample(count % SHARES_EVERY == SHARES_EVERY // 2, growth)
            count += 1
            self.stopped.wait(EARLY_S if count < EARLY_SAMPLES else SAMPLE_S)

    def sample(self, shares_are_due: bool, growth: float) -> None:
        """Once over all processes; over the shares of pages if they are due, or sizes have grown."""
        rss = 0
        processes = tree(self.process)
        for process in processes:
            self.seen.add(process)
            try:
                now, peak = resident(process.pid)
                rss += now
                self.rss_peak = max(self.rss_peak, peak)
                times = process.cpu_times()
                self.cpu_seconds[process.pid] = times.user + times.system
            except (psutil.Error, OSError):
                continue
        self.rss_peak = max(self.rss_peak, rss)
        if shares_are_due or rss > growth * self.rss_at_shares:
            self.rss_at_shares = max(self.rss_at_shares, rss)
            self.pss_peak = max(self.pss_peak, sum(map(proportional, processes)))


def tree(process: psutil.Process) -> list[psutil.Process]:
    """The process and its descendants."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def resident(pid: int) -> tuple[int, int]:
    """Bytes of a process in memory: now, and at most."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    sizes = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
    now, peak = (int(sizes.get(name, "0").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def proportional(process: psutil.Process) -> int:
    """Bytes of a process, shared ones divided by those who share; none if it has gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def run(
    command: Sequence[str], cores: set[int], environment: dict[str, str], log: Path
) -> Measurement:
    """Runs a command on some cores; it prints `written` when its last row is written."""
    with open(log, "wb") as messages:
        start = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=messages,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    sampler = Sampler(psutil.Process(child.pid))
    thread = threading.Thread(target=sampler.run)
    thread.start()
    timer = threading.Timer(LIMIT_S, kill, (child.pid,))
    timer.start()
    written = None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line.strip() == WRITTEN.encode():
            written = time.perf_counter() - start
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status = os.waitstatus_to_exitcode(status)
    timer.cancel()
    sampler.stopped.set()
    thread.join()
    ended = time.perf_counter() - start
    end(sampler.seen)
    if status != 0 or written is None:
        said = (b"".join(lines) + log.read_bytes()).decode(errors="replace")[-2000:]
        raise RunError(f"exit status {status} of: {' '.join(command)[:300]}\n{said}")
    # Looks miss what a process did after the last of them; the kernel knows all of those that were
    # waited for, and nothing of daemons.
    cpu = max(sum(sampler.cpu_seconds.values()), usage.ru_utime + usage.ru_stime)
    return Measurement(written, ended, sampler.rss_peak, sampler.pss_peak, cpu)


def apart(command: Sequence[str], environment: dict[str, str]) -> str:
    """The last line that a process of its own prints, whose descendants end with it: daemons of a
    cluster would outlive their run, and be found by the next one."""
    return watched(command, environment)[0]


def watched(command: Sequence[str], environment: dict[str, str]) -> tuple[str, int]:
    """The same, and the peak of the memory of all of them, shared pages counted once."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes)
    sampler = Sampler(psutil.Process(process.pid))
    watching = threading.Thread(target=sampler.run)
    watching.start()
    timer = threading.Timer(LIMIT_S, lambda: stop(sampler.seen))
    timer.start()
    said, problem = process.communicate()
    timer.cancel()
    sampler.stopped.set()
    watching.join()
    end(sampler.seen)
    if process.returncode != 0 or not said.strip():
        told = problem.decode(errors="replace")[-2000:]
        raise RunError(f"exit status {process.returncode} of: {' '.join(command)[:300]}\n{told}")
    return said.decode().splitlines()[-1], sampler.pss_peak


def end(processes: set[psutil.Process]) -> None:
    """Waits for daemons that outlive their run, and ends those that stay: the next run must have
    the cores to itself."""
    _, left = psutil.wait_procs(processes, timeout=GRACE_S)
    stop(left)
    psutil.wait_procs(left, timeout=GRACE_S)


def stop(processes: Iterable[psutil.Process]) -> None:
    """Kills those that are still there."""
    for process in tuple(processes):
        try:
            process.kill()
        except psutil.Error:
            continue


def kill(group: int) -> None:
    """Ends a run that takes too long."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
