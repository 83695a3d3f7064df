"""A second method of programs of tokens, for batches whose rows are all equally long: nothing is masked then.

The fastest kernels of attention on GPUs take no mask, and one that is not needed is neither made nor copied. The
method takes the arguments of `forward` but `attention_mask`. It is traced without the question whether a row is
padded, which the code of transformers asks where it is not traced; that it gives the same is proved by comparing
the two methods.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from transformers import masking_utils

from .candidate import Candidate, Tokens

METHOD = "without_mask"
_MASK = "attention_mask"
_ATTENTION = "aten::scaled_dot_product_attention"
# How far the methods of one program may differ, which add up the same numbers.
_TOLERANCE = 1e-5
_ROWS, _TOKENS_MAX = (1, 3), 4096
# Half precisions are about formats that do not meet; they round more the longer a row is.
_HALVES, _LENGTH_OF_HALVES, _TOLERANCE_OF_HALVES = (torch.bfloat16, torch.float16), 6, 0.1


def is_possible(candidate: Candidate) -> bool:
    """Whether the program gets a mask."""
    return isinstance(candidate.transform, Tokens) and _MASK in candidate.transform.arguments


@contextlib.contextmanager
def added(candidate: Candidate) -> Iterator[None]:
    """While the candidate's module has the method, to be traced."""
    module, at = candidate.module, _place(candidate)

    def without_mask(*others: torch.Tensor) -> object:
        with _without_padding():
            return module(*others[:at], torch.ones_like(others[0]), *others[at:])

    setattr(module, METHOD, without_mask)
    try:
        yield
    finally:
        delattr(module, METHOD)


def others(candidate: Candidate, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What the method takes: arguments of `forward` but the mask."""
    at = _place(candidate)
    return arguments[:at] + arguments[at + 1 :]


def holds(candidate: Candidate, path: Path) -> bool:
    """Whether a program's method gives what `forward` gives where no row is padded, in all precisions that
    `forward` can be computed in, and asks less of attention."""
    program = torch.jit.load(str(path), map_location="cpu")
    if not is_possible(candidate) or not _spares_masks(program):
        return False
    lengths = [
        (rows, length)
        for rows in _ROWS
        for length in candidate.transform.lengths()
        if rows == 1 or rows * length <= _TOKENS_MAX
    ]
    if not all(_difference(candidate, program, *size) <= _TOLERANCE for size in lengths):
        return False
    return all(_holds_in(candidate, path, kind) for kind in _HALVES)


def _place(candidate: Candidate) -> int:
    return candidate.transform.arguments.index(_MASK)


def _holds_in(candidate: Candidate, path: Path, kind: torch.dtype) -> bool:
    """Also if `forward` cannot be computed in half precision, as nobody loads the program so."""
    program = torch.jit.load(str(path), map_location="cpu").to(kind)
    example = candidate.transform.example(1, _LENGTH_OF_HALVES)
    try:
        with torch.no_grad():
            program(*example)
    except RuntimeError:
        return True
    return _difference(candidate, program, 3, _LENGTH_OF_HALVES) <= _TOLERANCE_OF_HALVES


def _difference(candidate: Candidate, program: torch.jit.ScriptModule, rows: int, length: int) -> float:
    """The largest between the two methods on rows of one length; infinite if only one can be called."""
    from .program import relative_difference

    full = _full(candidate, rows, length)
    try:
        with torch.no_grad():
            pair = program(*full), getattr(program, METHOD)(*others(candidate, full))
    except RuntimeError:
        return float("inf")
    expected, found = (given if isinstance(given, tuple) else (given,) for given in pair)
    if [one.shape for one in found] != [one.shape for one in expected]:
        return float("inf")
    differences = [
        relative_difference(one.double(), other.double())
        for one, other in zip(found, expected, strict=True)
        if other.numel()
    ]
    return max((value if value == value else float("inf") for value in differences), default=0.0)


def _full(candidate: Candidate, rows: int, length: int) -> tuple[torch.Tensor, ...]:
    """Arguments without padding; each row has the tokens of the first in another order."""
    row = candidate.transform.example(1, length)
    at = candidate.transform.arguments.index("input_ids")
    ids = torch.cat([row[at].roll(step, dims=1) for step in range(rows)])
    return tuple(ids if place == at else values.repeat(rows, 1) for place, values in enumerate(row))


def _spares_masks(program: torch.jit.ScriptModule) -> bool:
    """Whether attention takes fewer masks than in `forward`."""
    if not hasattr(program, METHOD):
        return False
    masked = [_masked(program, method) for method in ("forward", METHOD)]
    return masked[1] < masked[0]


def _masked(program: torch.jit.ScriptModule, method: str) -> int:
    """How often attention takes a mask."""
    graph = getattr(program, method).inlined_graph
    nodes = graph.findAllNodes(_ATTENTION, recurse=True)
    return sum(not list(node.inputs())[3].node().mustBeNone() for node in nodes)


def _is_global(*arguments: object) -> bool:
    """Whether each token attends to all, or to all before it; where only to those near it, as the last argument
    tells, there is a mask."""
    return arguments[-1] is None


@contextlib.contextmanager
def _without_padding() -> Iterator[None]:
    """While the code of transformers takes it that no row is padded, traced or not."""
    with contextlib.ExitStack() as patches:
        for name in ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa"):
            patches.enter_context(mock.patch.object(masking_utils, name, _is_global))
        yield
