"""Writes `model.toml`, the description of a package. The format is in docs/model-packages.md."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from sentence_transformers import SentenceTransformer

MIB = 1024 * 1024
BATCH_ROWS = 64
BATCH_TOKENS = 1024


@dataclass(frozen=True)
class Description:
    """What a package says about itself."""

    name: str
    version: str
    description: str
    license: str
    source: str
    dimensions: int
    max_tokens: int
    pad_id: int


def write_description(folder: Path, about: Description, model: SentenceTransformer) -> None:
    """Writes `model.toml` into `folder`, with the hash of every file that is already there."""
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }
    batch_tokens = max(BATCH_TOKENS, about.max_tokens)
    weights, activations = _memory_bytes(model, batch_tokens, about.max_tokens)
    # Loading holds the file and the weights at once; then the rest of the process comes on top.
    memory = _round_up_mib(2 * weights + activations + 128 * MIB, 50)
    gpu_memory = _round_up_mib(weights + 2 * activations + 512 * MIB, 256)
    files = "\n".join(f"{_quote(name)} = {_quote(digest)}" for name, digest in hashes.items())
    text = f"""\
format = 1
name = {_quote(about.name)}
version = {_quote(about.version)}
description = {_quote(about.description)}
license = {_quote(about.license)}
source = {_quote(about.source)}
determinism = "deterministic"

[[input]]
name = "text"
type = "STRING"

[[output]]
name = "embedding"
type = "FLOAT[{about.dimensions}]"

[transform]
kind = "tokenize"
tokenizer = "tokenizer.json"
max_tokens = {about.max_tokens}
pad_id = {about.pad_id}
arguments = ["input_ids", "attention_mask"]

[runtime]
kind = "torch"
program = "model.pt"

[resources]
cpus = 1
gpus = 1
memory = "{memory} MiB"
gpu_memory = "{gpu_memory} MiB"

[batch]
max_rows = {BATCH_ROWS}
max_tokens = {batch_tokens}
window_rows = 2048

[files]
{files}
"""
    (folder / "model.toml").write_text(text, encoding="utf-8")


def _memory_bytes(
    model: SentenceTransformer, batch_tokens: int, max_tokens: int
) -> tuple[int, int]:
    """Bytes of the weights, and an estimate of what one batch needs at the widest layer."""
    weights = sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])
    config = model[0].auto_model.config
    hidden = config.hidden_size
    heads = getattr(config, "num_attention_heads", 1)
    # Per token: about 8 vectors of the hidden size, 2 of the inner size (4 x hidden), and two rows
    # of attention scores per head.
    activations = 4 * batch_tokens * (16 * hidden + 2 * heads * max_tokens)
    return weights, activations


def _round_up_mib(size: int, step: int) -> int:
    return -(-size // (step * MIB)) * step


def _quote(text: str) -> str:
    """A TOML basic string; its escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
