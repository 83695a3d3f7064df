#!/usr/bin/env python3
"""Makes the files from which `forebay demo` assembles its model, src/demo/model/: again after a change
of the exporter.

    tools/setup model && tools/demo_model.py

The model's weights are downloaded by whoever runs the demo. What the exporter adds to them is small, so
the executable carries it: each file of the package as a patch of a downloaded one, in the format of
`zstd --patch-from`. Needs the program zstd.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / ".forebay/models/all-minilm-l6-v2"
SOURCE = ROOT / ".forebay/models/source/all-minilm-l6-v2"
OUTPUT = ROOT / "src/demo/model"
# Where each operation was in the Python sources, with the paths of the machine that exported it.
DEBUG = ".debug_pkl"


def main() -> int:
    """Writes the files; returns the exit code."""
    if not PACKAGE.exists() or not SOURCE.exists():
        print("demo_model: the model is missing; run tools/setup model", file=sys.stderr)
        return 1
    description = (PACKAGE / "model.toml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        program, tokenizer = Path(folder) / "model.pt", Path(folder) / "tokenizer.json"
        write_program(program)
        write_tokenizer(tokenizer)
        for written, base in ((program, "model.safetensors"), (tokenizer, "tokenizer.json")):
            write_patch(SOURCE / base, written, OUTPUT / f"{written.name}.zst")
            description = description.replace(digest(PACKAGE / written.name), digest(written))
    (OUTPUT / "model.toml").write_text(description, encoding="utf-8")
    return 0


def write_program(path: Path) -> None:
    """The program without what only debuggers read; not compressed, which the patch does better."""
    with zipfile.ZipFile(PACKAGE / "model.pt") as found, zipfile.ZipFile(path, "w") as written:
        for member in found.infolist():
            if not member.filename.endswith(DEBUG):
                written.writestr(zipfile.ZipInfo(member.filename), found.read(member))


def write_tokenizer(path: Path) -> None:
    """The tokenizer with as little white space as the downloaded one."""
    tokenizer = json.loads((PACKAGE / "tokenizer.json").read_text(encoding="utf-8"))
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")


def write_patch(base: Path, path: Path, patch: Path) -> None:
    """What makes `path` of `base`."""
    options = ("--quiet", "--force", "--ultra", "-19", "--long=31")
    subprocess.run(("zstd", *options, f"--patch-from={base}", path, "-o", patch), check=True)
    print(f"{patch.relative_to(ROOT)}: {patch.stat().st_size} bytes")


def digest(path: Path) -> str:
    """SHA-256, as model.toml has it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
