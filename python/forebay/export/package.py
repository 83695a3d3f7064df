"""Writes `model.toml`, the description of a package. The format is in docs/model-packages.md."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from .candidate import Candidate, Column, Images, Tokens, Transform

MIB = 1024 * 1024
BATCH_ROWS = 64
BATCH_TOKENS = 1024
BATCH_ROWS_TENSORS = 8


@dataclass(frozen=True)
class About:
    """What a package says about itself, apart from what its program takes and gives."""

    name: str
    version: str
    description: str
    license: str
    source: str
    determinism: str
    # As `precisions_of` found them.
    precisions: dict[str, float]


def write_description(folder: Path, about: About, candidate: Candidate) -> None:
    """Writes `model.toml` into `folder`, with the hash of every file that is already there."""
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }
    files = "\n".join(f"{_quote(name)} = {_quote(digest)}" for name, digest in hashes.items())
    columns = "\n".join(
        _column(kind, column)
        for kind, columns in (("input", candidate.inputs), ("output", candidate.outputs))
        for column in columns
    )
    prompt = "" if candidate.prompt is None else f"prompt = {_quote(candidate.prompt)}\n"
    prompts = "".join(
        f"\n{_quote(name)} = {_quote(text)}" for name, text in candidate.prompts.items()
    )
    prompts = f"\n\n[prompts]{prompts}" if prompts else ""
    precisions = "".join(f"{name} = {off:.1e}\n" for name, off in about.precisions.items())
    transform, batch, batch_size = _transform(candidate.transform)
    memory, gpu_memory = _memory_mib(candidate, batch_size)
    text = f"""\
format = 1
name = {_quote(about.name)}
version = {_quote(about.version)}
description = {_quote(about.description)}
license = {_quote(about.license)}
source = {_quote(about.source)}
determinism = {_quote(about.determinism)}
{prompt}
{columns}
[transform]
{transform}{prompts}

[runtime]
kind = "torch"
program = "model.pt"

[precisions]
{precisions}
[resources]
cpus = 1
gpus = 1
memory = "{memory} MiB"
gpu_memory = "{gpu_memory} MiB"

[batch]
{batch}

[files]
{files}
"""
    (folder / "model.toml").write_text(text, encoding="utf-8")


def _column(kind: str, column: Column) -> str:
    lines = [f"[[{kind}]]", f"name = {_quote(column.name)}", f"type = {_quote(column.type)}"]
    if column.labels is not None:
        lines.append(f"labels = {_quote(column.labels)}")
    if column.shape is not None:
        lines.append(f"shape = {list(column.shape)}")
    return "\n".join(lines) + "\n"


def _transform(transform: Transform) -> tuple[str, str, int]:
    """The sections [transform] and [batch], and the tokens (or rows) in the largest batch."""
    if isinstance(transform, Images):
        rows = BATCH_ROWS_TENSORS
        section = f"""\
kind = "image"
resize = {transform.resize}
fit = {_quote(transform.fit)}
crop = {transform.shape[-1]}
middle = {_quote(transform.middle)}
filter = {_quote(transform.filter)}
layout = "chw"
mean = {list(transform.mean)}
std = {list(transform.std)}"""
        return section, f"max_rows = {rows}\nwindow_rows = {4 * rows}", rows
    if not isinstance(transform, Tokens):
        rows = BATCH_ROWS_TENSORS
        return 'kind = "tensor"', f"max_rows = {rows}\nwindow_rows = {4 * rows}", rows
    batch_tokens = max(BATCH_TOKENS, transform.max_tokens)
    template = "" if transform.template is None else f"template = {_quote(transform.template)}\n"
    section = f"""\
kind = "tokenize"
tokenizer = "tokenizer.json"
max_tokens = {transform.max_tokens}
pad_id = {transform.pad_id}
vocabulary = {transform.embeddings or transform.vocabulary}
{template}arguments = {json.dumps(list(transform.arguments))}"""
    batch = f"max_rows = {BATCH_ROWS}\nmax_tokens = {batch_tokens}\nwindow_rows = 8192"
    return section, batch, batch_tokens


def _memory_mib(candidate: Candidate, batch_size: int) -> tuple[int, int]:
    """What one replica needs on a CPU and on a GPU."""
    module = candidate.module
    weights = sum(p.numel() * p.element_size() for p in [*module.parameters(), *module.buffers()])
    activations = candidate.activation_bytes(batch_size)
    # Loading holds the file and the weights at once; then the rest of the process comes on top.
    memory = _round_up_mib(2 * weights + activations + 128 * MIB, 50)
    gpu_memory = _round_up_mib(weights + 2 * activations + 512 * MIB, 256)
    return memory, gpu_memory


def _round_up_mib(size: int, step: int) -> int:
    return -(-size // (step * MIB)) * step


def _quote(text: str) -> str:
    """A TOML basic string; its escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
