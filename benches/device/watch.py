"""What NVIDIA's own tool says of the device while a step runs."""

import contextlib
import shutil
import statistics
import subprocess
from collections.abc import Iterator

# By the names of the results.
FIELDS = {
    "clock_mhz": "clocks.sm",
    "power_w": "power.draw",
    "busy_percent": "utilization.gpu",
    "memory_mib": "memory.used",
    "temperature_c": "temperature.gpu",
}
EVERY_MS = 250
TOOL = "nvidia-smi"


@contextlib.contextmanager
def watched() -> Iterator[dict[str, object]]:
    """Fills what it gives when the step has ended: of each field the median and the most. Nothing without the
    tool."""
    seen: dict[str, object] = {}
    if shutil.which(TOOL) is None:
        yield seen
        return
    query = [f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits", "--id=0"]
    command = [TOOL, *query, f"--loop-ms={EVERY_MS}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield seen
        finally:
            process.terminate()
            printed, _ = process.communicate()
            seen.update(summary(printed))


def summary(printed: str) -> dict[str, object]:
    """Of the tool's lines: the median and the most of each field that it has numbers for."""
    found: dict[str, object] = {}
    rows = [line.split(",") for line in printed.splitlines()]
    rows = [row for row in rows if len(row) == len(FIELDS)]
    for at, name in enumerate(FIELDS):
        values = [value for row in rows if (value := number(row[at])) is not None]
        if values:
            found[name] = {"median": statistics.median(values), "most": max(values)}
    return found


def number(text: str) -> float | None:
    """Some devices do not say some things."""
    try:
        return float(text)
    except ValueError:
        return None
