"""Embeds texts with sentence-transformers: the values that Forebay's results are tested against.

    tools/python -m forebay.export.reference --source FOLDER --output FILE [TEXTS]

TEXTS (default: stdin) holds one JSON string per line. FILE ends in .f32 (rows of little-endian
32-bit floats), .npy, or .json ({"texts": …, "embeddings": …}).
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np  # noqa: E402
import transformers  # noqa: E402

from .encoder import load_model  # noqa: E402
from .errors import ExportError  # noqa: E402


def embed(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """`encode` of the model in `folder`, as `[texts, dimensions]` 32-bit floats."""
    transformers.utils.logging.disable_progress_bar()
    return np.asarray(load_model(folder).encode(list(texts)), dtype="<f4")


def write(path: Path, texts: Sequence[str], embeddings: np.ndarray) -> None:
    """Writes the embeddings in the form that the suffix of `path` names."""
    if path.suffix == ".f32":
        path.write_bytes(embeddings.tobytes())
    elif path.suffix == ".npy":
        np.save(path, embeddings)
    elif path.suffix == ".json":
        # The shortest decimal that reads back as the same 32-bit float.
        rows = [[float(str(value)) for value in row] for row in embeddings]
        document = {"texts": list(texts), "embeddings": rows}
        path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    else:
        raise ExportError(f"{path}: choose a name that ends in .f32, .npy or .json")


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="reference", description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--output", type=Path, required=True, help="file ending in .f32, .npy or .json"
    )
    parser.add_argument(
        "texts", nargs="?", type=argparse.FileType(encoding="utf-8"), default=sys.stdin
    )
    options = parser.parse_args()
    try:
        if not options.source.is_dir():
            what = "this is a file, no folder" if options.source.exists() else "no such folder"
            raise ExportError(f"{options.source}: {what}")
        texts = [json.loads(line) for line in options.texts]
        write(options.output, texts, embed(options.source, texts))
    except (ExportError, json.JSONDecodeError) as error:
        print(f"reference: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
