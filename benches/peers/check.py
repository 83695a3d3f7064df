"""Whether two engines gave the same rows."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engines import tables

# PyTorch adds in another order with another number of rows or threads.
VECTOR_ATOL = 2e-5
SCORE_ATOL = 1e-4
# JPEG decoders and resizers round differently: see docs/images.md.
IMAGE_SCORE_ATOL = 0.05
IMAGE_LABELS = 0.95


class Disagreement(Exception):
    """Two engines gave different rows."""


def read(folder: Path, workload: str) -> pa.Table:
    """The rows of one run, in the order of their keys."""
    files = [path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    table = pa.concat_tables([pq.read_table(path) for path in files], promote_options="permissive")
    if workload in ("images", "decode"):
        names = [os.path.basename(path) for path in table["path"].to_pylist()]
        table = table.set_column(table.column_names.index("path"), "path", pa.array(names))
        return table.sort_by("path")
    keys = [(key, "ascending") for key in ("id", "chunk") if key in table.column_names]
    return table.sort_by(keys)


def rows(folder: Path, workload: str) -> int:
    """How many rows a run wrote."""
    return len(read(folder, workload))


def agree(reference: Path, other: Path, workload: str) -> dict[str, float]:
    """How far two runs are apart; an error if that is too far."""
    left, right = read(reference, workload), read(other, workload)
    if len(left) != len(right):
        raise Disagreement(f"{len(right)} rows, expected {len(left)}")
    return COMPARE[workload](left, right)


def same(left: pa.Table, right: pa.Table, column: str) -> None:
    """Equal values in a column."""
    pairs = zip(left[column].to_pylist(), right[column].to_pylist(), strict=True)
    wrong = next(((a, b) for a, b in pairs if a != b), None)
    if wrong is not None:
        expected, found = (str(value)[:80] for value in wrong)
        raise Disagreement(f"column {column}: {found!r}, expected {expected!r}")


def near(left: np.ndarray, right: np.ndarray, limit: float) -> dict[str, float]:
    """Numbers that differ by no more than the limit."""
    difference = float(np.abs(left - right).max()) if left.size else 0.0
    if not difference <= limit:
        raise Disagreement(f"values differ by {difference:.2e}, at most {limit:.0e} was expected")
    return {"max_difference": difference}


def vectors(left: pa.Table, right: pa.Table) -> dict[str, float]:
    """Embeddings, of texts or of chunks with equal texts."""
    for key in ("id", "chunk"):
        if key in left.column_names:
            same(left, right, key)
    return near(tables.matrix(left["embedding"]), tables.matrix(right["embedding"]), VECTOR_ATOL)


def classes(left: pa.Table, right: pa.Table) -> dict[str, float]:
    """Scores near each other, and nearly all labels equal."""
    same(left, right, "path")
    labels = np.array(left["label"].to_pylist()) == np.array(right["label"].to_pylist())
    if labels.mean() < IMAGE_LABELS:
        raise Disagreement(f"{labels.mean():.3f} of the labels are equal")
    found = near(left["score"].to_numpy(), right["score"].to_numpy(), IMAGE_SCORE_ATOL)
    return {**found, "equal_labels": float(labels.mean())}


def scores(left: pa.Table, right: pa.Table) -> dict[str, float]:
    """Numbers by id."""
    same(left, right, "id")
    return near(left["score"].to_numpy(), right["score"].to_numpy(), SCORE_ATOL)


def files(left: pa.Table, right: pa.Table) -> dict[str, float]:
    """The same files; that their pixels are right is seen where a model labels them."""
    same(left, right, "path")
    return {}


def exact(column: str) -> object:
    """Equal values by id."""

    def compare(left: pa.Table, right: pa.Table) -> dict[str, float]:
        same(left, right, "id")
        same(left, right, column)
        return {}

    return compare


COMPARE = {
    "embed": vectors,
    "chunk": vectors,
    "images": classes,
    "decode": files,
    "mlp": scores,
    "start": scores,
    "accelerator": exact("hash"),
    "expand": exact("bytes"),
}
