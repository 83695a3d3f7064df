"""The task `program`: a user's own TorchScript program, or module of PyTorch, with the columns that it is
said to take and give.

Its own call is what the package is compared with.
"""

import json
import math
import pickle
import re
from pathlib import Path

import torch

from . import trust
from .candidate import KINDS, LABELS_FILE, Candidate, Column, Original, Values
from .errors import ExportError
from .reasons import reason_of

# What reading a pickle may raise.
_UNREADABLE = (OSError, RuntimeError, ValueError, AttributeError, ImportError, EOFError)
_COLUMN = re.compile(r"(?P<name>[A-Za-z_]\w*)\s+(?P<type>[A-Za-z]+)\s*(?:\[\s*(?P<sides>[\d\s,]+)\])?")


def parse_column(text: str) -> Column:
    """`x FLOAT`, `x FLOAT[4]`, or `x FLOAT[3, 32, 32]`, whose rows have this shape in the program."""
    found = _COLUMN.fullmatch(text.strip())
    kind = found["type"].upper() if found else ""
    if not found or kind not in (*KINDS, "STRING") or (kind == "STRING" and found["sides"]):
        raise ExportError(
            f"the column {text!r}: expected a name and a type, such as 'x FLOAT[4]'; the types are "
            f"{', '.join(KINDS)}, vectors of them, and of results STRING (with --labels)"
        )
    if found["sides"] is None:
        return Column(found["name"], kind)
    sides = tuple(int(side) for side in found["sides"].split(","))
    shape = sides if len(sides) > 1 else None
    return Column(found["name"], f"{kind}[{math.prod(sides)}]", shape=shape)


def program(
    path: Path, inputs: list[str] | None, outputs: list[str], labels: Path | None
) -> Candidate:
    """The candidate of a program with these columns."""
    if not inputs or not outputs:
        raise ExportError(
            f"{path}: say what columns the program takes and gives: --input 'x FLOAT[4]' --output "
            "'y FLOAT', once for each, in the order of its arguments and results"
        )
    taken = tuple(parse_column(text) for text in inputs)
    given = tuple(_labelled(parse_column(text)) for text in outputs)
    if any(column.type == "STRING" for column in taken):
        raise ExportError(f"{path}: a program takes numbers and vectors, not STRING")
    names = _names(labels, given)
    module = _load(path).eval()
    if not isinstance(module, torch.jit.ScriptModule):
        module.requires_grad_(False)
    transform = Values(taken)
    _check_results(path, module, transform, given, names)

    def call(*arguments: torch.Tensor) -> dict[str, object]:
        with torch.no_grad():
            results = module(*arguments)
        results = results if isinstance(results, tuple) else (results,)
        values = (result.reshape(1, -1)[0].tolist() for result in results)
        return {
            column.name: _value(column, value, names)
            for column, value in zip(given, values, strict=True)
        }

    def write_files(package: Path) -> None:
        if names:
            text = json.dumps(names, ensure_ascii=False, indent=1)
            (package / LABELS_FILE).write_text(f"{text}\n", encoding="utf-8")

    widest = max([p.numel() for p in module.parameters()] + [1024])
    return Candidate(
        module=module,
        inputs=taken,
        outputs=given,
        transform=transform,
        description=f"A program of {len(taken)} inputs",
        # Nothing is known of what it computes in between.
        activation_bytes=lambda rows: 4 * rows * min(widest, 1 << 20),
        write_files=write_files,
        original=Original("the program's own call", call),
    )


def _labelled(column: Column) -> Column:
    if column.type != "STRING":
        return Column(column.name, column.type)  # Results are flat.
    return Column(column.name, "STRING", labels=LABELS_FILE)


def _names(path: Path | None, outputs: tuple[Column, ...]) -> list[str]:
    wanted = any(column.labels is not None for column in outputs)
    if wanted != (path is not None):
        raise ExportError(
            "an output of type STRING is an index into the lines of a file: pass --labels FILE"
            if wanted
            else "--labels names the values of an output of type STRING; there is none; leave it out"
        )
    return path.read_text(encoding="utf-8").splitlines() if path else []


def _load(path: Path) -> torch.nn.Module:
    try:
        return torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        if not trust.given():
            raise ExportError(
                f"{path}: it is no TorchScript program; save one by torch.jit.save(torch.jit.script(module), "
                "…), or, if torch.save wrote this module and you trust who made it, pass "
                "--trust-remote-code: reading it runs its code"
            ) from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=False)
    except (*_UNREADABLE, pickle.UnpicklingError) as error:
        raise ExportError(
            f"{path}: it cannot be read: {reason_of(error)}; a module of PyTorch needs the files that "
            "define its classes: set PYTHONPATH to their folder"
        ) from error
    if not isinstance(found, torch.nn.Module):
        raise ExportError(
            f"{path}: it holds {type(found).__name__}, no program; weights alone are no model: load them "
            "into their module, and save that by torch.jit.save(torch.jit.script(module), …)"
        )
    return found.float()


def _check_results(
    path: Path,
    module: torch.nn.Module,
    transform: Values,
    outputs: tuple[Column, ...],
    names: list[str],
) -> None:
    """Whether it takes and gives what was said, for one row and for several."""
    for rows in (1, 3):
        arguments = transform.example(rows, 1)
        shapes = ", ".join(f"{list(a.shape)} of {a.dtype}" for a in arguments)
        try:
            with torch.no_grad():
                results = module(*arguments)
        except Exception as error:  # Whatever the user's code raises.
            raise ExportError(f"{path}: it fails on {shapes}: {reason_of(error)}") from error
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != len(outputs) or not all(isinstance(r, torch.Tensor) for r in results):
            raise ExportError(
                f"{path}: it gives {len(results)} results, and {len(outputs)} --output are declared; "
                "expected a tensor, or a tuple of them, for each"
            )
        for column, result in zip(outputs, results, strict=True):
            _check_result(path, column, result, rows, names)


def _check_result(
    path: Path, column: Column, result: torch.Tensor, rows: int, names: list[str]
) -> None:
    width = math.prod(column.sides())
    is_vector = "[" in column.type
    fits = (rows, width) == tuple(result.shape) or (not is_vector and tuple(result.shape) == (rows,))
    wanted = torch.int64 if column.labels else column.kind()
    alike = wanted.is_floating_point == result.dtype.is_floating_point and result.dtype != torch.bool
    if not fits or not alike:
        raise ExportError(
            f"{path}: {column.name} {column.type}: the program gives {list(result.shape)} of "
            f"{result.dtype} for {rows} rows; expected {[rows, width] if is_vector else [rows]} of {wanted}"
        )
    if names and column.labels and not bool(((result >= 0) & (result < len(names))).all()):
        raise ExportError(
            f"{path}: {column.name}: the program gives {int(result.max())}, and --labels has "
            f"{len(names)} lines"
        )


def _value(column: Column, values: list, names: list[str]) -> object:
    if column.labels is not None:
        return names[values[0]]
    return values if "[" in column.type else values[0]
