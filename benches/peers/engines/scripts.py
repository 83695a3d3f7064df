"""What somebody writes who wants a text model on a CPU fast, and no engine: some 25 lines with the `tokenizers`
package, batches of equal length, and a runtime that is not PyTorch.

- The whole input is read at once and sorted by length, so that hardly anything is padding.
- Batches hold 1,024 tokens: of 512, 1,024, 2,048 and 4,096 the fastest here, for both runtimes.
- As many batches at a time as there are cores, each on one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engines import settings, tables, work
from engines.settings import Run

# Ids and mask of a batch, in; one row of 384 numbers for each token, out.
Hidden = Callable[[list[dict[str, np.ndarray]]], list[np.ndarray]]


def model_file(run: Run) -> Path:
    """The model as Optimum exports it."""
    return run.data / "models/onnx/onnx/model.onnx"


def embed(run: Run, hidden: Hidden) -> Iterator[pa.Table]:
    """Texts in, vectors out."""
    table = pq.read_table(run.rows)
    vectors = vectors_of(table["text"].to_pylist(), hidden)
    yield pa.table({"id": table["id"], "embedding": tables.vectors(vectors)})


def chunk(run: Run, hidden: Hidden) -> Iterator[pa.Table]:
    """Documents in, vectors of their chunks out."""
    table = pq.read_table(run.rows)
    chunker = work.Chunker()
    ids, texts = [], []
    for at, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
        chunks = chunker(text)
        ids += [at] * len(chunks)
        texts += chunks
    vectors = tables.vectors(vectors_of(texts, hidden))
    yield pa.table({"id": ids, "chunk": texts, "embedding": vectors})


def vectors_of(texts: list[str], hidden: Hidden) -> np.ndarray:
    """Means over tokens, of length one."""
    tokenizer = work.tokenizer()
    rows = [code.ids for code in tokenizer.encode_batch(texts)]
    order = sorted(range(len(rows)), key=lambda at: -len(rows[at]))
    batches = list(work.batches_by_length([rows[at] for at in order]))
    padded = [inputs(batch) for batch in batches]
    means = [mean(*pair) for pair in zip(hidden(padded), padded, strict=True)]
    vectors = np.empty((len(rows), settings.DIMENSIONS), np.float32)
    vectors[order] = np.concatenate(means)
    return vectors


def inputs(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """What the model takes."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def mean(hidden: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Of the tokens that are there."""
    mask = batch["attention_mask"][:, :, None].astype(np.float32)
    means = (hidden * mask).sum(1) / mask.sum(1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


Scores = Callable[[list[np.ndarray]], list[np.ndarray]]


def images(run: Run, scores: Scores) -> Iterator[pa.Table]:
    """JPEG files in, labels and scores out: decoded on all cores, then the model on all cores."""
    from concurrent.futures import ThreadPoolExecutor

    labels = (run.data / "models/labels.txt").read_text().splitlines()
    names = pq.read_table(run.rows)["path"].to_pylist()
    work.limit_threads(1)
    recipe = work.recipe()
    mean, deviation = (np.float32(values) * 255 for values in (settings.MEAN, settings.DEVIATION))

    def pixels(group: list[str]) -> np.ndarray:
        found = [recipe(Path(run.images, name).read_bytes()) for name in group]
        scaled = (np.stack(found).astype(np.float32) - mean) / deviation
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    # Not all at once: floats of 1,500 images are a gigabyte.
    size = settings.IMAGE_ROWS * settings.CORES * 4
    with ThreadPoolExecutor(settings.CORES) as threads:
        for start in range(0, len(names), size):
            some = names[start : start + size]
            step = settings.IMAGE_ROWS
            groups = [some[at : at + step] for at in range(0, len(some), step)]
            logits = np.concatenate(scores(list(threads.map(pixels, groups))))
            shares = np.exp(logits - logits.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            best = shares.argmax(1)
            yield pa.table(
                {"path": some, "label": [labels[at] for at in best], "score": shares.max(1)}
            )


def write(run: Run, results: Iterator[pa.Table]) -> None:
    """The rows, and that the last one is written."""
    run.output.mkdir(parents=True)
    writer = None
    for table in results:
        writer = writer or pq.ParquetWriter(run.output / "0.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    settings.done()
