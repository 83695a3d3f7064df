"""Daft, with its native runner.

- Models are classes (`daft.cls`) with batch methods, one instance per core in a process of its own
  (`use_process`, which its guide names against contention for Python's lock), one thread per
  operator. They load once.
- 512 texts at a time, which `encode` sorts by length: fewer calls leave a core idle at the end.
- Images are downloaded by Daft's own reader and decoded with the model, without these options and
  with PyTorch's operators on all cores: on 2 cores a tenth faster than a process per core, and
  without a model a third.
- Defaults: as in its guide: no option on the class, batches of 32.
"""

import daft
import pyarrow as pa
import pyarrow.compute as pc
from daft import DataFrame, DataType, Series, col

from engines import settings, tables, work
from engines.settings import Run

PER_CORE = {"max_concurrency": settings.CORES, "use_process": settings.CORES > 1}
VECTOR = DataType.fixed_size_list(DataType.float32(), settings.DIMENSIONS)
CLASS = DataType.struct({"label": DataType.string(), "score": DataType.float32()})


@daft.cls(**PER_CORE)
class Embed:
    """Vectors of texts."""

    def __init__(self) -> None:
        self.embedder = work.Embedder(1)

    @daft.method.batch(return_dtype=VECTOR, batch_size=512)
    def vectors(self, texts: Series) -> pa.Array:
        return tables.vectors(self.embedder(texts.to_pylist()))


@daft.cls
class EmbedDefaults:
    """The same as the guide has it."""

    def __init__(self) -> None:
        self.embedder = work.Embedder(None)

    @daft.method.batch(return_dtype=VECTOR, batch_size=32)
    def vectors(self, texts: Series) -> pa.Array:
        return tables.vectors(self.embedder(texts.to_pylist()))


@daft.cls
class Classify:
    """Labels and scores of files; tuned, the same as the guide has it but for the threads."""

    def __init__(self, run: Run) -> None:
        threads = None if run.defaults else settings.CORES
        self.classifier = work.Classifier(run.data / "models", threads)

    @daft.method.batch(return_dtype=CLASS, batch_size=32)
    def classes(self, files: Series) -> pa.Array:
        return tables.classes(*self.classifier(files.to_pylist()))


@daft.cls
class Decode:
    """Pixels of files, which the device takes."""

    def __init__(self) -> None:
        self.decoder = work.Decoder()

    @daft.method.batch(return_dtype=DataType.int64(), batch_size=settings.DECODE_ROWS)
    def sizes(self, files: Series) -> pa.Array:
        return pa.array(self.decoder(files.to_pylist()), pa.int64())


@daft.cls(max_concurrency=settings.CORES)
class Score:
    """The small model: in threads, for its columns are too large to send to processes."""

    def __init__(self, run: Run) -> None:
        self.model = work.Mlp(run.data / "models", 1)

    @daft.method.batch(return_dtype=DataType.float32(), batch_size=65536)
    def scores(self, features: Series) -> pa.Array:
        return pa.array(self.model(tables.matrix(features.to_arrow())))


@daft.cls(max_concurrency=1)
class Device:
    """The emulated accelerator: one instance, so one batch at a time."""

    def __init__(self) -> None:
        self.slot = work.Accelerator()

    @daft.method.batch(return_dtype=DataType.string(), batch_size=settings.SERVICE_ROWS)
    def small(self, hashes: Series) -> Series:
        self.slot()
        return hashes

    @daft.method.batch(return_dtype=DataType.int64(), batch_size=settings.EXPAND_ROWS)
    def large(self, payloads: Series) -> pa.Array:
        self.slot()
        return pc.binary_length(payloads.to_arrow())


@daft.func.batch(return_dtype=DataType.list(DataType.string()))
def cut(texts: Series) -> pa.Array:
    """Chunks; the tokenizer lets go of Python's lock."""
    chunker = work.Chunker()
    return pa.array([chunker(text) for text in texts.to_pylist()], pa.list_(pa.string()))


@daft.func.batch(return_dtype=DataType.string(), batch_size=settings.SERVICE_ROWS)
def hashes(texts: Series) -> pa.Array:
    """Hashing lets go of Python's lock too."""
    return pa.array([work.hashed(text) for text in texts.to_pylist()])


@daft.func.batch(return_dtype=DataType.binary(), batch_size=settings.EXPAND_ROWS)
def grow(texts: Series) -> pa.Array:
    """4 MiB a row."""
    return pa.array([work.expand(text) for text in texts.to_pylist()], pa.large_binary())


def read(run: Run) -> DataFrame:
    """The input."""
    return daft.read_parquet(f"{run.rows}/*.parquet")


def embed(run: Run) -> DataFrame:
    """Texts in, vectors out."""
    if run.defaults:
        # On top, as the guide has it: instances in threads must not import at the same time.
        import sentence_transformers  # noqa: F401

    model = EmbedDefaults() if run.defaults else Embed()
    return read(run).select(col("id"), model.vectors(col("text")).alias("embedding"))


def chunk(run: Run) -> DataFrame:
    """Documents in, vectors of their chunks out."""
    chunks = read(run).select(col("id"), cut(col("text")).alias("chunk")).explode("chunk")
    return chunks.with_column("embedding", Embed().vectors(col("chunk")))


def images(run: Run) -> DataFrame:
    """JPEG files in, labels and scores out."""
    model = Classify(run)
    files = daft.from_glob_path(f"{run.images}/*.jpg").select("path")
    found = files.with_column("class", model.classes(col("path").download()))
    fields = [col("class")[name].alias(name) for name in ("label", "score")]
    return found.select(col("path"), *fields)


def decode(run: Run) -> DataFrame:
    """JPEG files in; the device takes their pixels."""
    files = daft.from_glob_path(f"{run.images}/*.jpg").select("path")
    return files.select(col("path"), Decode().sizes(col("path").download()).alias("bytes"))


def mlp(run: Run) -> DataFrame:
    """Vectors in, a number out."""
    return read(run).select(col("id"), Score(run).scores(col("features")).alias("score"))


def accelerator(run: Run) -> DataFrame:
    """Hashing, then the device."""
    work_done = read(run).select(col("id"), hashes(col("text")).alias("hash"))
    return work_done.with_column("hash", Device().small(col("hash")))


def expand(run: Run) -> DataFrame:
    """Texts are made large; the device takes a few at a time."""
    grown = read(run).select(col("id"), grow(col("text")).alias("payload"))
    return grown.select(col("id"), Device().large(col("payload")).alias("bytes"))


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    daft.set_runner_native()
    task = {"start": mlp}.get(run.workload) or globals()[run.workload]
    task(run).write_parquet(str(run.output))
    settings.done()


if __name__ == "__main__":
    main()
