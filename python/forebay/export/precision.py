"""Tells which half precisions a program holds, and how far its results are off in them.

A trace keeps what the model's code wrote down, such as masks made in 32-bit floats; where these meet
weights of another format, the program fails. Better known now than in the middle of a query.
"""

from pathlib import Path

import torch

from .candidate import Candidate
from .program import relative_difference

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROWS, LENGTH_MAX = 7, 64
# A CPU that has no such numbers may take seconds for each image.
LARGE_ROW, LARGE_ROWS = 10_000, 3


def precisions_of(candidate: Candidate, path: Path) -> dict[str, float]:
    """By the name of each precision that works: the largest difference from 32-bit floats."""
    lengths = [length for length in candidate.transform.lengths() if length <= LENGTH_MAX]
    single = [candidate.transform.example(1, length) for length in lengths]
    is_large = max(sum(value.numel() for value in row) for row in single) > LARGE_ROW
    rows = LARGE_ROWS if is_large else ROWS
    batches = single + [candidate.transform.example(rows, length) for length in lengths]
    expected = _results(path, torch.float32, batches)
    held = {}
    for name, kind in HALVES.items():
        try:
            found = _results(path, kind, batches)
        except RuntimeError:
            continue
        worst = max(_difference(*pair) for pair in zip(found, expected, strict=True))
        if worst < float("inf"):
            held[name] = worst
    return held


def _results(
    path: Path, kind: torch.dtype, batches: list[tuple[torch.Tensor, ...]]
) -> list[torch.Tensor]:
    """The outputs that are floats, computed as a reader of the package does."""
    program = torch.jit.load(str(path), map_location="cpu").to(kind)
    results = []
    for batch in batches:
        arguments = [value.to(kind) if value.is_floating_point() else value for value in batch]
        torch.manual_seed(0)
        with torch.no_grad():
            outputs = program(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        results += [output.double() for output in outputs if output.is_floating_point()]
    return results


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Infinite where a result is no number any more."""
    difference = relative_difference(found, expected)
    return difference if difference == difference else float("inf")
