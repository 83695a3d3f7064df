"""How far a program in fewer bits is off, over a sample: in the terms of what users do with its results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from .candidate import Candidate, Tokens, fields_of
from .errors import ExportError
from .program import call

# Below these, a program is not exported.
COSINE_LEAST, LABELS_LEAST, CORRELATION_LEAST = 0.995, 0.99, 0.995
# What is recorded of a measure.
DIGITS = 4
# The first outputs that it knows.
MEASURED = ("embedding", "label", "labels", "score")

Program = Callable[..., object]


@dataclass(frozen=True)
class Quality:
    """What was measured over so many rows; one of the measures, by what the model gives."""

    rows: int
    # Of embeddings: between those of either program, in the mean and at the least.
    mean_cosine: float | None = None
    least_cosine: float | None = None
    # Of classifiers: the share of rows, or tokens, whose best label is the same.
    equal_labels: float | None = None
    # Of scores.
    correlation: float | None = None

    def measures(self) -> dict[str, float]:
        """Those that count, by name, in few digits."""
        found = {name: value for name, value in vars(self).items() if name != "rows"}
        return {name: round(value, DIGITS) for name, value in found.items() if value is not None}

    def will_do(self) -> bool:
        """Whether a model of it can be used in place of the other."""
        limits = {
            "mean_cosine": COSINE_LEAST,
            "equal_labels": LABELS_LEAST,
            "correlation": CORRELATION_LEAST,
        }
        values = {name: getattr(self, name) for name in limits}
        # Also not when it is not a number.
        return all(values[name] >= limits[name] for name in limits if values[name] is not None)

    def expected(self) -> str:
        """The measure's limit, in words."""
        if self.mean_cosine is not None:
            return f"a mean cosine of {COSINE_LEAST} or more"
        if self.equal_labels is not None:
            return f"equal labels of {LABELS_LEAST:.0%} or more"
        return f"a correlation of {CORRELATION_LEAST} or more"

    def __str__(self) -> str:
        named = (f"{name.replace('_', ' ')} {value:.4f}" for name, value in self.measures().items())
        return f"{', '.join(named)} over {self.rows} rows"


def measure(
    candidate: Candidate, exact: Program, other: Program, rows: list[list[np.ndarray]]
) -> Quality:
    """Compares two programs of a candidate over rows, each by itself."""
    results = [
        [call(program, tuple(map(torch.from_numpy, row)), "a row of the sample") for row in rows]
        for program in (exact, other)
    ]
    first, count = candidate.outputs[0], len(rows)
    ours, theirs = ([row[0] for row in of_program] for of_program in results)
    if first.name == "embedding":
        pairs = zip(torch.cat(ours), torch.cat(theirs), strict=True)
        cosines = [torch.nn.functional.cosine_similarity(*pair, dim=0).item() for pair in pairs]
        return Quality(count, mean_cosine=float(np.mean(cosines)), least_cosine=min(cosines))
    if first.name == "label":
        return Quality(count, equal_labels=(torch.cat(ours) == torch.cat(theirs)).double().mean().item())
    if first.name == "labels":
        equal = [
            (one == two)[kept[-1]]
            for one, two, kept in zip(ours, theirs, results[0], strict=True)
        ]
        return Quality(count, equal_labels=torch.cat(equal).double().mean().item())
    pair = torch.stack([torch.cat(ours).flatten(), torch.cat(theirs).flatten()])
    return Quality(count, correlation=torch.corrcoef(pair.double())[0, 1].item())


def check_measurable(candidate: Candidate) -> None:
    """Refuses models of which no measure says what rounding costs their users."""
    first = candidate.outputs[0]
    is_measured = first.name in MEASURED and not fields_of(first.type)
    if not isinstance(candidate.transform, Tokens) or not is_measured:
        raise ExportError(
            "--precision int8 is for embeddings, classifiers, taggers and re-rankers of texts; leave it out"
        )
