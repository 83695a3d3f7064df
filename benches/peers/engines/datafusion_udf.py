"""DataFusion-Python: the engine that Forebay extends, with Python functions for the model.

- As many partitions as cores, and one thread per PyTorch operator: partitions run in threads of
  their own, and PyTorch lets go of Python's lock while it computes.
- `batch_size` is what a function gets at a time: 2,048 texts, which `encode` sorts by length; 16
  images; as many rows as the device takes.
- Functions get and give Arrow arrays without a copy.
- Defaults: no option set, so 8,192 rows at a time and PyTorch's own number of threads.
"""

import functools

import pyarrow as pa
from datafusion import SessionConfig, SessionContext, col, udf

from engines import settings, tables, work
from engines.settings import Run

ROWS = {
    "embed": 2048,
    "chunk": 2048,
    "images": settings.IMAGE_ROWS,
    "decode": settings.DECODE_ROWS,
    "mlp": 65536,
    "accelerator": settings.SERVICE_ROWS,
    "expand": settings.EXPAND_ROWS,
}


def session(run: Run) -> SessionContext:
    """A session with the input as table `t`."""
    config = SessionConfig()
    if not run.defaults:
        config = config.with_target_partitions(settings.CORES)
        config = config.with_batch_size(ROWS.get(run.workload, 8192))
    context = SessionContext(config)
    context.register_parquet("t", run.rows)
    return context


def threads(run: Run) -> int | None:
    """Of each of PyTorch's operators."""
    return None if run.defaults else 1


def embed(run: Run) -> object:
    """Texts in, vectors out."""
    embedder = work.Embedder(threads(run))

    def apply(texts: pa.Array) -> pa.Array:
        return tables.vectors(embedder(texts.to_pylist()))

    function = udf(apply, [pa.string_view()], tables.EMBEDDING, "immutable")
    return session(run).table("t").select(col("id"), function(col("text")).alias("embedding"))


def chunk(run: Run) -> object:
    """Documents in, vectors of their chunks out."""
    chunker, embedder = work.Chunker(), work.Embedder(threads(run))

    def cut(texts: pa.Array) -> pa.Array:
        return pa.array([chunker(text) for text in texts.to_pylist()], pa.list_(pa.string()))

    def apply(texts: pa.Array) -> pa.Array:
        return tables.vectors(embedder(texts.to_pylist()))

    cuts = udf(cut, [pa.string_view()], pa.list_(pa.string()), "immutable")
    function = udf(apply, [pa.string()], tables.EMBEDDING, "immutable")
    chunks = session(run).table("t").select(col("id"), cuts(col("text")).alias("chunk"))
    chunks = chunks.unnest_columns("chunk")
    return chunks.select(col("id"), col("chunk"), function(col("chunk")).alias("embedding"))


def images(run: Run) -> object:
    """JPEG files in, labels and scores out; the function reads the files."""
    classifier = work.Classifier(run.data / "models", threads(run))

    def apply(paths: pa.Array) -> pa.Array:
        return tables.classes(*classifier(contents(run, paths)))

    function = udf(apply, [pa.string_view()], tables.CLASS, "immutable")
    found = session(run).table("t").select(col("path"), function(col("path")).alias("class"))
    fields = [col("class")[name].alias(name) for name in ("label", "score")]
    return found.select(col("path"), *fields)


def decode(run: Run) -> object:
    """JPEG files in; a partition decodes while the device takes the other's pixels."""
    decoder = work.Decoder()

    def apply(paths: pa.Array) -> pa.Array:
        return pa.array(decoder(contents(run, paths)), pa.int64())

    function = udf(apply, [pa.string_view()], pa.int64(), "immutable")
    return session(run).table("t").select(col("path"), function(col("path")).alias("bytes"))


def contents(run: Run, paths: pa.Array) -> list[bytes]:
    """Of files."""
    files = []
    for path in paths.to_pylist():
        with open(f"{run.images}/{path}", "rb") as file:
            files.append(file.read())
    return files


def mlp(run: Run) -> object:
    """Vectors in, a number out."""
    model = work.Mlp(run.data / "models", threads(run))

    def apply(features: pa.Array) -> pa.Array:
        return pa.array(model(tables.matrix(features)))

    given = pa.list_(pa.float32(), settings.FEATURES)
    function = udf(apply, [given], pa.float32(), "immutable")
    return session(run).table("t").select(col("id"), function(col("features")).alias("score"))


def device(run: Run, task: object, result: pa.DataType, name: str) -> object:
    """CPU work and the device in one function: a partition computes while the other waits."""
    slot = work.Accelerator()

    def apply(texts: pa.Array) -> pa.Array:
        done = [task(text) for text in texts.to_pylist()]
        slot()
        return pa.array(done, result)

    function = udf(apply, [pa.string_view()], result, "immutable")
    return session(run).table("t").select(col("id"), function(col("text")).alias(name))


def expanded(text: str) -> int:
    """The row is made large and given up again."""
    return len(work.expand(text))


WORK = {
    "embed": embed,
    "chunk": chunk,
    "images": images,
    "decode": decode,
    "mlp": mlp,
    "start": mlp,
    "accelerator": functools.partial(device, task=work.hashed, result=pa.string(), name="hash"),
    "expand": functools.partial(device, task=expanded, result=pa.int64(), name="bytes"),
}


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    run.output.mkdir(parents=True)
    WORK[run.workload](run).write_parquet(str(run.output))
    settings.done()


if __name__ == "__main__":
    main()
