"""Memory of `forebay shell` while it classifies many image files under a memory limit.

    tools/python benches/memory.py path/to/forebay [--files 50000] [--limit 512MB]

The files are JPEGs of the tests with a few bytes behind them that differ, so that nothing is shared.
The model is tiny: reading, decoding and moving is what takes the time. Prints one JSON object with the
resident megabytes after each tenth of the rows' time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / ".forebay/images/good"
NAMES = ("baseline", "exif2", "grey", "progressive", "subsampled", "wide")
PACKAGE = ROOT / ".forebay/fixtures/images-resnet-files/package"


def make_files(folder: Path, count: int) -> None:
    """JPEGs that all differ."""
    sources = [(IMAGES / f"{name}.jpg").read_bytes() for name in NAMES]
    for at in range(count):
        source = sources[at % len(sources)]
        (folder / f"{at:06}.jpg").write_bytes(source + at.to_bytes(4, "big"))


def resident_mb(process: int) -> int:
    """What a process holds in memory now."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


def run(command: list[str], every_s: float) -> tuple[list[int], str]:
    """The memory of a process that must succeed, sampled, and what it printed."""
    samples = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            samples.append(resident_mb(process.pid))
            time.sleep(every_s)
        printed = process.stdout.read()
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}: {printed}")
    return samples, printed


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--limit", default="512MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name), options.files)
        sql = (
            f"CREATE TEMPORARY MODEL m LOCATION '{PACKAGE}';"
            "SELECT count(label) FROM ml_predict("
            f"(SELECT bytes FROM read_files('{name}/*.jpg')), MODEL m, DESCRIPTOR(bytes))"
        )
        shell = [str(options.forebay.resolve()), "shell", "-q", "--format", "csv"]
        samples, printed = run([*shell, "--memory-limit", options.limit, "-c", sql], 0.5)
    if printed.split()[-1] != str(options.files):
        raise SystemExit(f"expected {options.files} labels, found {printed}")
    tenths = [samples[len(samples) * tenth // 10] for tenth in range(1, 10)] + [samples[-1]]
    result = {
        "name": "memory over image files",
        "files": options.files,
        "memory_limit": options.limit,
        "megabytes_after_each_tenth": tenths,
        "megabytes_peak": max(samples),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
