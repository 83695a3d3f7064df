"""Arrow columns of results, made without a copy of the values."""

import numpy as np
import pyarrow as pa

from engines import settings

EMBEDDING = pa.list_(pa.float32(), settings.DIMENSIONS)
CLASS = pa.struct({"label": pa.string(), "score": pa.float32()})


def vectors(values: np.ndarray) -> pa.Array:
    """A column of vectors from `[rows, n]` numbers."""
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def matrix(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """`[rows, n]` numbers from a column of lists that are equally long."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def classes(labels: list[str], scores: np.ndarray) -> pa.StructArray:
    """A column of labels with their scores."""
    return pa.StructArray.from_arrays([pa.array(labels), pa.array(scores)], fields=list(CLASS))
