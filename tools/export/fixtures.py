"""Makes the packages that Rust tests load: a tiny encoder of every architecture.

    tools/export/python tools/export/fixtures.py OUTPUT

Writes OUTPUT/<architecture>/package, and beside it reference.json: mixed texts and what
sentence-transformers' `encode` returns for them. Seeded: the same bytes each time.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # The models are tiny; more threads only wait.

import transformers  # noqa: E402

import export  # noqa: E402
from reference import embed, write  # noqa: E402
from texts import MIXED  # noqa: E402
from tiny import ARCHITECTURES, build_model  # noqa: E402


def main() -> int:
    """Runs the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print("usage: fixtures.py OUTPUT", file=sys.stderr)
        return 2
    transformers.utils.logging.disable_progress_bar()
    output = Path(sys.argv[1])
    for architecture in ARCHITECTURES:
        folder = output / architecture
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            build_model(architecture, Path(work))
            source = Path(work) / "model"
            arguments = ["--source", str(source), "--output", str(folder / "package")]
            about = [
                "--name",
                f"tiny-{architecture}",
                "--license",
                "CC0-1.0",
                "--origin",
                "random weights",
            ]
            code = export.main(arguments + about)
            if code != 0:
                return code
            write(folder / "reference.json", MIXED, embed(source, MIXED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
