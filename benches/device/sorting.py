"""Sorts records by key on a machine with many cores and no network or Rust: `benches/peers/sort.py` there.

    python3 benches/device/sorting.py PACKED [--gigabytes 16] [--rounds 3] [--output FOLDER] [--data FOLDER]

PACKED is the folder of benches/device/pack.sh. Python needs numpy, pyarrow and psutil; beside Forebay, which has a worker
per core with 1 GB, runs DuckDB with as much memory in all, if Python has it.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine import Forebay

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packed", type=Path)
    parser.add_argument("--output", type=Path, default=Path.cwd(), help="folder of the JSON file")
    parser.add_argument("--data", type=Path, help="where records and what engines write lie")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=16.0)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    engines = ["forebay"]
    if importlib.util.find_spec("duckdb"):
        engines.append("duckdb")
        # Where a checkout has it.
        python = ROOT / ".forebay/duckdb/bin/python"
        if not python.exists():
            python.parent.mkdir(parents=True, exist_ok=True)
            # Not a link: an environment's own packages are found from where its Python is.
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="forebay-sort-") as scratch:
        forebay = Forebay.unpack(options.packed, Path(scratch), time.monotonic() + 3600)
        command = [sys.executable, ROOT / "benches/peers/sort.py", forebay.folder / "forebay"]
        command += [f"--rounds={options.rounds}", f"--gigabytes={options.gigabytes}"]
        command += [f"--data={options.data or Path(scratch) / 'data'}", f"--results={options.output}"]
        command += [f"--engine={engine}" for engine in engines]
        # What the binary's model runtime asks for is there, though no model runs.
        return subprocess.run(command, env=os.environ | forebay.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
