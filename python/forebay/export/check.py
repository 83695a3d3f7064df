"""Compares a finished package, read as its readers read it, with the call of the model's own library.

`program.py` proves that the trace computes what the exporter's module does. This proves that they are
what the model's users get: with the tokenizer, token types, padding and whatever else the library does.
"""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from .candidate import Candidate, Original
from .errors import ExportError
from .program import TOLERANCE
from .reader import Columns, run
from .texts import MIXED, PAIRS

# Each text alone, and with others beside it that are shorter and longer.
BATCHES = (1, 5, len(MIXED))


def check_package(package: Path, candidate: Candidate) -> float:
    """The largest difference seen; an error if it is more than rounding."""
    original, worst = candidate.original, 0.0
    if original is None:
        return worst
    rows = _rows(package, len(candidate.inputs))
    columns = zip(candidate.inputs, zip(*rows, strict=True), strict=True)
    inputs = {column.name: list(values) for column, values in columns}
    for prompt in (None, *candidate.prompts):
        chosen = {} if prompt is None else {"prompt": prompt}
        expected = [original.call(*row, **chosen) for row in rows]
        for size in BATCHES:
            found = run(package, inputs, size, prompt)
            for name, row, difference in _differences(found, expected, rows):
                if not difference <= TOLERANCE:  # Also when it is not a number.
                    doubt = candidate.transform.padding_doubt if size > 1 else ""
                    raise ExportError(_report(original, name, row, size, difference) + doubt)
                worst = max(worst, difference)
    return worst


def _differences(
    found: Columns, expected: list[dict[str, object]], rows: list[tuple[str, ...]]
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Of each output of each row."""
    for index, (row, outputs) in enumerate(zip(rows, expected, strict=True)):
        for name, value in outputs.items():
            yield name, row, _difference(found[name][index], value)


def _rows(package: Path, columns: int) -> list[tuple[str, ...]]:
    """The texts of each row. Those without any token are left out: no library computes them."""
    if columns == 2:
        return list(PAIRS)
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    return [(text,) for text in MIXED if tokenizer.encode(text).ids]


def _difference(found: object, expected: object) -> float:
    """Absolute up to 1, relative above; infinite between other texts and lists of other lengths."""
    if isinstance(expected, list):
        if len(found) != len(expected):
            return float("inf")
        return max((_difference(*pair) for pair in zip(found, expected, strict=True)), default=0.0)
    if isinstance(expected, str):
        return 0.0 if found == expected else float("inf")
    return abs(found - expected) / max(1.0, abs(expected))


def _report(
    original: Original, name: str, row: tuple[str, ...], rows: int, difference: float
) -> str:
    shown = ", ".join(repr(text[:40]) for text in row)
    where = "alone" if rows == 1 else f"in a batch of {rows} rows"
    return (
        f"the package differs from {original.name} by {difference:.2g} in {name!r} of {shown} "
        f"{where}; this model cannot be exported"
    )
