"""PySpark, local mode.

- As many task slots as cores; workers of Python live on between tasks and hold their model
  (`work.embedder` and others are cached), one thread per operator.
- `mapInArrow`: Arrow batches in and out, no pandas. `maxRecordsPerBatch` is how many rows a
  function gets at a time: 2,048 texts, which `encode` sorts by length.
- The web interface is off; 1 GB of heap is more than these inputs need.
- Defaults: `local[*]`, no option, the iterator form of `pandas_udf`, which its guide has for
  models, and batches of 32 in it.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from engines import settings, tables, work
from engines.settings import Run

ROWS = {
    "embed": 2048,
    "chunk": 512,
    "images": 64,
    "decode": settings.DECODE_ROWS,
    "mlp": 65536,
    "accelerator": settings.SERVICE_ROWS,
    "expand": settings.EXPAND_ROWS,
}
Batches = Iterator[pa.RecordBatch]


def session(run: Run, master: str = f"local[{settings.CORES}]") -> SparkSession:
    """A session of one process, with workers; or of a cluster."""
    if run.defaults:
        return SparkSession.builder.master("local[*]").getOrCreate()
    options = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS.get(run.workload, 10000),
    }
    builder = SparkSession.builder.master(master)
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def embed(run: Run) -> DataFrame:
    """Texts in, vectors out."""
    frame = session(run).read.parquet(run.rows)
    if run.defaults:
        return embed_defaults(frame)

    def apply(batches: Batches) -> Batches:
        for batch in batches:
            vectors = work.embedder(1)(batch["text"].to_pylist())
            yield pa.record_batch({"id": batch["id"], "embedding": lists(vectors)})

    return frame.mapInArrow(apply, "id long, embedding array<float>")


def embed_defaults(frame: DataFrame) -> DataFrame:
    """As the guide has it."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    @pandas_udf("array<float>")
    def apply(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        model = work.Embedder(None)
        for texts in parts:
            found = [model(texts[at : at + 32]) for at in range(0, len(texts), 32)]
            yield pd.Series(list(np.concatenate(found)))

    return frame.select("id", apply("text").alias("embedding"))


def chunk(run: Run) -> DataFrame:
    """Documents in, vectors of their chunks out."""

    def apply(batches: Batches) -> Batches:
        chunker = work.Chunker()
        for batch in batches:
            found = [chunker(text) for text in batch["text"].to_pylist()]
            ids = np.repeat(batch["id"].to_numpy(), [len(chunks) for chunks in found])
            texts = [text for chunks in found for text in chunks]
            vectors = lists(work.embedder(1)(texts))
            yield pa.record_batch({"id": ids, "chunk": texts, "embedding": vectors})

    frame = session(run).read.parquet(run.rows)
    return frame.mapInArrow(apply, "id long, chunk string, embedding array<float>")


def images(run: Run) -> DataFrame:
    """JPEG files in, labels and scores out."""
    threads = None if run.defaults else 1

    def apply(batches: Batches) -> Batches:
        model = work.classifier(run.data / "models", threads)
        for batch in batches:
            labels, scores = model(batch["content"].to_pylist())
            yield pa.record_batch({"path": batch["path"], "label": labels, "score": scores})

    files = session(run).read.format("binaryFile").load(run.images)
    return files.select("path", "content").mapInArrow(
        apply, "path string, label string, score float"
    )


def decode(run: Run) -> DataFrame:
    """JPEG files in; the device takes their pixels."""

    def apply(batches: Batches) -> Batches:
        for batch in batches:
            sizes = work.decoder()(batch["content"].to_pylist())
            yield pa.record_batch({"path": batch["path"], "bytes": sizes})

    files = session(run).read.format("binaryFile").load(run.images)
    return files.select("path", "content").mapInArrow(apply, "path string, bytes long")


def mlp(run: Run) -> DataFrame:
    """Vectors in, a number out."""

    def apply(batches: Batches) -> Batches:
        model = work.small_model(run.data / "models", 1)
        for batch in batches:
            scores = model(tables.matrix(batch["features"]))
            yield pa.record_batch({"id": batch["id"], "score": scores})

    return session(run).read.parquet(run.rows).mapInArrow(apply, "id long, score float")


def accelerator(run: Run) -> DataFrame:
    """Hashing and the device in each worker, which share its slot."""

    def apply(batches: Batches) -> Batches:
        slot = work.Accelerator()
        for batch in batches:
            hashes = [work.hashed(text) for text in batch["text"].to_pylist()]
            slot()
            yield pa.record_batch({"id": batch["id"], "hash": hashes})

    return session(run).read.parquet(run.rows).mapInArrow(apply, "id long, hash string")


def expand(run: Run) -> DataFrame:
    """Texts are made large and given up in the same worker, never in the JVM."""

    def apply(batches: Batches) -> Batches:
        slot = work.Accelerator()
        for batch in batches:
            sizes = [len(work.expand(text)) for text in batch["text"].to_pylist()]
            slot()
            yield pa.record_batch({"id": batch["id"], "bytes": sizes})

    return session(run).read.parquet(run.rows).mapInArrow(apply, "id long, bytes long")


def lists(vectors: np.ndarray) -> pa.Array:
    """Spark knows no vectors of a fixed length."""
    return tables.vectors(vectors).cast(pa.list_(pa.float32()))


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    task = {"start": mlp}.get(run.workload) or globals()[run.workload]
    task(run).write.parquet(str(run.output))
    settings.done()


if __name__ == "__main__":
    main()
