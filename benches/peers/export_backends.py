"""Exports all-MiniLM-L6-v2 for sentence-transformers' backends, by its own calls.

python export_backends.py MODEL OUTPUT

writes OUTPUT/onnx and OUTPUT/openvino.
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer


def main() -> None:
    """Runs the command line."""
    _, source, output = sys.argv
    for backend in ("onnx", "openvino"):
        options = {"export": True}
        model = SentenceTransformer(source, backend=backend, device="cpu", model_kwargs=options)
        model.save_pretrained(f"{output}/{backend}")
    # fastembed looks here only, and would cut texts at 128 tokens.
    path = Path(output, "onnx/tokenizer_config.json")
    lengths = {"model_max_length": model.max_seq_length, "max_length": model.max_seq_length}
    path.write_text(json.dumps(json.loads(path.read_text()) | lengths))


if __name__ == "__main__":
    main()
