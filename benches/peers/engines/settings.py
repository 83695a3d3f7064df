"""What all engines agree on: sizes, files, and how a run is called."""

import argparse
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MINILM = ROOT / ".forebay/models/source/all-minilm-l6-v2"
MINILM_PACKAGE = ROOT / ".forebay/models/all-minilm-l6-v2"

# The Python of OpenVINO and ONNX Runtime.
BACKENDS = str(ROOT / ".forebay/backends/bin/python")

CORES = len(os.sched_getaffinity(0))
DIMENSIONS = 384
FEATURES = 32

CHUNK_TOKENS, CHUNK_OVERLAP = 128, 16

RESIZE, CROP = 256, 224
IMAGE_ROWS = 8
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# The emulated accelerator, with CPU work in front of it: about 0.5 ms of hashing a row.
SERVICE_S, SERVICE_ROWS = 0.040, 64
HASHED_COPIES = 256
# The one that takes pixels, many times as fast as they are decoded.
DECODE_SERVICE_S, DECODE_ROWS = 0.008, 64
# The one that takes large rows: so many copies of a text of 1 KiB are 4 MiB.
EXPAND_ROWS, EXPAND_COPIES = 4, 4096

WRITTEN = "written"


def checkout() -> str:
    """The commit of these sources: of the binary too, where it was built from them."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # Unpacked from an archive, say.
    return said.stdout.strip()


@dataclass(frozen=True)
class Run:
    """One call of an engine."""

    workload: str
    data: Path
    output: Path
    defaults: bool

    @property
    def rows(self) -> str:
        """The folder of Parquet files."""
        return str(self.data / "rows")

    @property
    def images(self) -> str:
        """The folder of JPEG files."""
        return str(self.data / "images")


def parse() -> Run:
    """The command line of every engine's module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--defaults", action="store_true", help="as in the engine's own tutorial")
    options = parser.parse_args()
    return Run(options.workload, options.data, options.output, options.defaults)


def done() -> None:
    """The last row is written; what follows (workers that end) is not measured."""
    print(WRITTEN, flush=True)
