"""Rates: so much work that a figure rests on seconds, in rounds, the first of which does not count."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

Found = dict[str, object]


@dataclass(frozen=True)
class Work:
    """How much is done for a figure."""

    # At least, for each round.
    seconds: float
    rounds: int
    # Of token ids and images that are made; more are the same ones again.
    rows: int
    images: int
    # How often queries are repeated where memory is watched.
    repeats: int


# On a CPU one round is enough to see that it runs.
WORK = {
    "cuda": Work(seconds=2.0, rounds=3, rows=20_480, images=2_048, repeats=40),
    "cpu": Work(seconds=0.0, rounds=1, rows=256, images=32, repeats=40),
}


def passes(work: Work, one_s: float) -> int:
    """How many passes over the rows fill a round."""
    return max(1, math.ceil(work.seconds / one_s)) if one_s > 0 else 1


def rate(run: Callable[[int], float], rows: int, work: Work, rounds: int | None = None) -> Found:
    """Rows per second of what takes so many seconds for so many passes over the rows."""
    first = run(1)
    times = passes(work, run(1)) if work.seconds else 1
    seconds = [run(times) for _ in range(rounds or work.rounds)]
    return summary(rows * times, seconds) | {"first_s": first}


def summary(rows: int, seconds: list[float]) -> Found:
    """Of rounds over so many rows: the median rate, and all of them."""
    rates = [rows / one for one in seconds]
    return {"rows_per_s": statistics.median(rates), "rounds": rates, "rows": rows}
