"""Tiny models with random weights of the families that people use, and what their own libraries give.

    tools/python python/tests/export/kinds.py [NAME …]

exports each (or those named), compares the packages with the libraries, and writes their rows of the table
in docs/models.md. `test_kinds.py` does the same for a few of them, and for all with FOREBAY_KINDS=all.
"""

import contextlib
import io
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # The models are tiny; more threads only wait.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import sentence_transformers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from forebay.export import command  # noqa: E402
from forebay.export.check import BATCHES, difference  # noqa: E402
from forebay.export.reader import Columns, run  # noqa: E402

DOCS = Path(__file__).resolve().parents[3] / "docs/models.md"
BEGIN, END = "<!-- kinds: begin -->", "<!-- kinds: end -->"
# As docs/models.md promises.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Kind:
    """A model of one family for one task."""

    family: str
    task: str
    build: Callable[[Path], None]
    # Rows, and the library's own call for them: one at a time, from the folder.
    inputs: Columns
    # What the call is, for the table.
    call: str
    expected: Callable[[Path, Columns], Columns]
    arguments: tuple[str, ...] = ()
    # If it cannot be exported: a part of what the message says.
    refused: str = ""

    @property
    def name(self) -> str:
        """Unique among all."""
        return f"{self.task}: {self.family}"


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    # Of a refusal: the last line that the exporter printed.
    message: str
    alone: float = 0.0
    batched: float = 0.0
    precisions: tuple[tuple[str, float], ...] = ()


def try_kind(kind: Kind) -> Outcome:
    """Builds, exports, compares; what the exporter says of a refusal."""
    with tempfile.TemporaryDirectory() as work:
        source, package = Path(work) / "source", Path(work) / "package"
        source.mkdir()
        _quietly(lambda: kind.build(source))
        if (source / "model.pt").exists():
            source = source / "model.pt"
        said = io.StringIO()
        arguments = ["--source", str(source), "--output", str(package), *kind.arguments]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(arguments)
        said = said.getvalue()
        assert "Traceback" not in said, said
        lines = [line for line in said.splitlines() if line.startswith("export: ")]
        if code != 0:
            assert not package.exists()
            return Outcome(lines[-1].removeprefix("export: ").replace(f"{source}: ", ""))
        expected = _quietly(lambda: kind.expected(source, kind.inputs))
        alone, *batched = (_compare(package, kind, size, expected) for size in BATCHES)
        about = tomllib.loads((package / "model.toml").read_text())
        return Outcome("", alone, max(batched), tuple(about["precisions"].items()))


def _compare(package: Path, kind: Kind, size: int, expected: Columns) -> float:
    found, worst = run(package, kind.inputs, size), 0.0
    assert found.keys() >= expected.keys()
    for name, values in expected.items():
        worst = max([worst, *map(difference, found[name], values)])
    return worst


def _quietly(call: Callable[[], object]) -> object:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return call()


def row(kind: Kind, outcome: Outcome) -> str:
    """Of the table."""
    if outcome.message:
        return f"| {kind.family} | {kind.task} | refused: {_short(outcome.message)} | | | | |"
    held = dict(outcome.precisions)
    halves = " | ".join(f"{held[name]:.0e}" if name in held else "refused" for name in ("bf16", "fp16"))
    figures = f"{outcome.alone:.0e} | {outcome.batched:.0e} | {halves}"
    return f"| {kind.family} | {kind.task} | {kind.call} | {figures} |"


def _short(message: str) -> str:
    text = message.replace("|", "/")
    return text if len(text) <= 200 else f"{text[:200]}…"


def versions() -> str:
    """Of the libraries that the table was made with."""
    libraries = (sentence_transformers, transformers, torch)
    # Without what PyTorch adds for the device that it was built for.
    stated = ((library.__name__, library.__version__.partition("+")[0]) for library in libraries)
    return ", ".join(f"{name} {version}" for name, version in stated)


def table(rows: list[str]) -> str:
    """As it stands in the docs, with what it was made with."""
    head = "| family | task | the library's call | fp32, alone | in batches | bf16 | fp16 |\n"
    head += "|---|---|---|---|---|---|---|\n"
    return f"{BEGIN}\nMade with {versions()}.\n\n{head}" + "\n".join(rows) + f"\n{END}"


def main() -> int:
    """Runs the command line; returns the exit code."""
    from kinds_list import KINDS

    named = set(sys.argv[1:])
    chosen = [kind for kind in KINDS if not named or kind.family in named or kind.name in named]
    transformers.utils.logging.disable_progress_bar()
    rows, wrong = {}, 0
    for kind in chosen:
        outcome = try_kind(kind)
        rows[kind.family, kind.task] = row(kind, outcome)
        problem = problem_of(kind, outcome)
        wrong += bool(problem)
        print(f"{row(kind, outcome)}{f'  <-- {problem}' if problem else ''}", flush=True)
    if wrong:
        print(f"{len(rows)} kinds, {wrong} not as expected; docs/models.md is left as it is")
        return 1
    before, rest = DOCS.read_text(encoding="utf-8").split(BEGIN)
    old, after = rest.split(END)
    rows = {**rows_of(old), **rows}
    ordered = [rows[kind.family, kind.task] for kind in KINDS if (kind.family, kind.task) in rows]
    DOCS.write_text(before + table(ordered) + after, encoding="utf-8")
    print(f"{len(chosen)} kinds, all as expected; docs/models.md is written")
    return 0


def rows_of(table: str) -> dict[tuple[str, str], str]:
    """Those of a table, by family and task."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    cells = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {(found[1], found[2]): line for found, line in zip(cells, lines, strict=True)}


def problem_of(kind: Kind, outcome: Outcome) -> str:
    """What is not as the list says, if anything."""
    if kind.refused:
        is_said = kind.refused in outcome.message
        return "" if is_said else f"expected a refusal that says {kind.refused!r}: {outcome.message!r}"
    if outcome.message:
        return outcome.message
    worst = max(outcome.alone, outcome.batched)
    return "" if worst <= TOLERANCE else f"it is off by {worst}"


if __name__ == "__main__":
    sys.exit(main())
