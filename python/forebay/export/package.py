"""Writes `model.toml`, the description of a package. The format is in docs/model-packages.md."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from .candidate import Candidate, Column, Images, Tokens, Transform
from .compiled import Compiled
from .quality import Quality

MANIFEST = "model.toml"
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
    # As `precisions_of` found them; None if nobody has tried.
    precisions: dict[str, float] | None
    # What runs the program: torch or onnx.
    runtime: str = "torch"
    # Of a program in 8 bits: how far it is off.
    quality: Quality | None = None
    # The program as native code, beside TorchScript.
    compiled: tuple[Compiled, ...] = ()


# The file of a program, by what runs it.
PROGRAMS = {"torch": "model.pt", "onnx": "model.onnx"}
# Whether a replica takes an accelerator where there is one. ONNX Runtime's need a package of their own.
GPUS = {"torch": 1, "onnx": 0}


def write_description(folder: Path, about: About, candidate: Candidate) -> None:
    """Writes `model.toml` into `folder`, with the hash of every other file that is there."""
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
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
    precisions = _precisions(about)
    precision = "" if about.quality is None else 'precision = "int8"\n'
    kind = "aoti" if about.compiled else about.runtime
    compiled = "".join(_compiled(one) for one in about.compiled)
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
kind = "{kind}"
program = "{PROGRAMS[about.runtime]}"
{precision}{compiled}
{precisions}[resources]
cpus = 1
gpus = {GPUS[about.runtime]}
memory = "{memory} MiB"
gpu_memory = "{gpu_memory} MiB"

[batch]
{batch}

[files]
{files}
"""
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _precisions(about: About) -> str:
    """What is known of other precisions than 32 bits."""
    text = ""
    if about.precisions is not None:
        lines = (f"{name} = {off:.1e}\n" for name, off in about.precisions.items())
        text = f"[precisions]\n{''.join(lines)}\n"
    if about.quality is not None:
        measures = "".join(f"{name} = {value}\n" for name, value in about.quality.measures().items())
        text += f"[quality.int8]\nrows = {about.quality.rows}\n{measures}\n"
    return text


def _compiled(about: Compiled) -> str:
    return f"""
[[runtime.compiled]]
program = {_quote(about.program)}
architecture = {_quote(about.architecture)}
precision = {_quote(about.precision)}
torch = {_quote(about.torch)}
"""


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
