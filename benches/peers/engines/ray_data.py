"""Ray Data.

- Models are in actors (`ActorPoolStrategy`), one per core with one thread per operator, which load
  once. They claim half a core each, so that reading and writing, which are tasks of their own, find
  a free one: with whole cores nothing would read.
- Batches are Arrow tables, the format of Ray's blocks: no conversion. 1,024 texts at a time, which
  `encode` sorts by length; 64 images, read and decoded in the actor, because pixels are 4 times as
  many bytes as files and would go through the object store.
- `override_num_blocks` makes blocks small enough to keep all actors busy to the end.
- The dashboard and progress bars are off.
- Defaults: as in its guide to batch inference: `ray.init()`, batches of 32, dictionaries of NumPy
  arrays.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import ActorPoolStrategy, Dataset

from engines import settings, tables, work
from engines.settings import Run

# For reading, writing and small work beside actors.
SMALL = {"num_cpus": 0.25}


class Embed:
    """Adds vectors to a table of texts."""

    def __init__(self, column: str) -> None:
        self.embedder, self.column = work.Embedder(1), column

    def __call__(self, table: pa.Table) -> pa.Table:
        vectors = tables.vectors(self.embedder(table[self.column].to_pylist()))
        return table.append_column("embedding", vectors)


class EmbedDefaults:
    """The same as the guide has it."""

    def __init__(self) -> None:
        self.embedder = work.Embedder(None)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"id": batch["id"], "embedding": self.embedder(batch["text"])}


class Classify:
    """Labels and scores of files."""

    def __init__(self, run: Run) -> None:
        self.classifier = work.Classifier(run.data / "models", None if run.defaults else 1)

    def __call__(self, table: pa.Table) -> pa.Table:
        labels, scores = self.classifier(table["bytes"].to_pylist())
        return pa.table({"path": table["path"], "label": labels, "score": scores})


class Decode:
    """Pixels of files, which the device takes."""

    def __init__(self) -> None:
        self.decoder = work.Decoder()

    def __call__(self, table: pa.Table) -> pa.Table:
        sizes = self.decoder(table["bytes"].to_pylist())
        return pa.table({"path": table["path"], "bytes": sizes})


class Score:
    """The small model."""

    def __init__(self, run: Run) -> None:
        self.model = work.Mlp(run.data / "models", 1)

    def __call__(self, table: pa.Table) -> pa.Table:
        scores = self.model(tables.matrix(table["features"]))
        return pa.table({"id": table["id"], "score": scores})


class Device:
    """The emulated accelerator: one actor, so one batch at a time."""

    def __init__(self) -> None:
        self.slot = work.Accelerator()

    def __call__(self, table: pa.Table) -> pa.Table:
        self.slot()
        if "payload" not in table.column_names:
            return table
        sizes = pc.binary_length(table["payload"])
        return pa.table({"id": table["id"], "bytes": sizes})


def actors(dataset: Dataset, actor: type, rows: int, *arguments: object) -> Dataset:
    """One actor per core."""
    return dataset.map_batches(
        actor,
        batch_size=rows,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=settings.CORES),
        fn_constructor_args=arguments,
        num_cpus=0.5,
    )


def read(run: Run, blocks: int) -> Dataset:
    """The input in so many blocks."""
    return ray.data.read_parquet(run.rows, override_num_blocks=blocks, ray_remote_args=SMALL)


def embed(run: Run) -> Dataset:
    """Texts in, vectors out."""
    if run.defaults:
        dataset = ray.data.read_parquet(run.rows)
        return dataset.map_batches(EmbedDefaults, batch_size=32, concurrency=1)
    return actors(read(run, 8), Embed, 1024, "text").select_columns(["id", "embedding"])


def chunk(run: Run) -> Dataset:
    """Documents in, vectors of their chunks out."""

    def cut(table: pa.Table) -> pa.Table:
        chunker = work.Chunker()
        chunks = [chunker(text) for text in table["text"].to_pylist()]
        ids = np.repeat(table["id"].to_numpy(), [len(found) for found in chunks])
        return pa.table({"id": ids, "chunk": [text for found in chunks for text in found]})

    cuts = read(run, 8).map_batches(cut, batch_size=None, batch_format="pyarrow", **SMALL)
    return actors(cuts, Embed, 256, "chunk")


def images(run: Run) -> Dataset:
    """JPEG files in, labels and scores out."""
    if run.defaults:
        dataset = ray.data.read_binary_files(run.images, include_paths=True)
        return dataset.map_batches(
            Classify,
            batch_size=32,
            batch_format="pyarrow",
            fn_constructor_args=(run,),
            concurrency=1,
        )
    return actors(files(run, 16), Classify, 64, run)


def decode(run: Run) -> Dataset:
    """JPEG files in; the device takes their pixels."""
    return actors(files(run, 32), Decode, settings.DECODE_ROWS)


def files(run: Run, blocks: int) -> Dataset:
    """The files in so many blocks."""
    return ray.data.read_binary_files(
        run.images, include_paths=True, override_num_blocks=blocks, ray_remote_args=SMALL
    )


def mlp(run: Run) -> Dataset:
    """Vectors in, a number out."""
    return actors(read(run, 16), Score, 65536, run)


def device(dataset: Dataset, rows: int, **placement: object) -> Dataset:
    """The device behind tasks; its actor waits and needs no core."""
    return dataset.map_batches(
        Device,
        batch_size=rows,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=1),
        num_cpus=0,
        **placement,
    )


def accelerator(run: Run) -> Dataset:
    """Hashing in tasks, the device in an actor."""
    return device(hashes(run), settings.SERVICE_ROWS)


def hashes(run: Run) -> Dataset:
    """The CPU part."""

    def apply(table: pa.Table) -> pa.Table:
        found = [work.hashed(text) for text in table["text"].to_pylist()]
        return pa.table({"id": table["id"], "hash": found})

    rows = settings.SERVICE_ROWS
    return read(run, 100).map_batches(apply, batch_size=rows, batch_format="pyarrow")


def expand(run: Run) -> Dataset:
    """Texts are made large in tasks; the device takes a few at a time."""

    def grow(table: pa.Table) -> pa.Table:
        payloads = [work.expand(text) for text in table["text"].to_pylist()]
        return pa.table({"id": table["id"], "payload": payloads})

    # Blocks as large as a batch: what lies in the object store is little.
    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 16 << 20
    rows = settings.EXPAND_ROWS
    dataset = read(run, 100).map_batches(grow, batch_size=rows, batch_format="pyarrow")
    return device(dataset, rows)


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # A node of its own, not a cluster that somebody left.
    if run.defaults:
        ray.init(address="local")
    else:
        own = {"address": "local", "num_cpus": settings.CORES}
        ray.init(**own, include_dashboard=False, log_to_driver=False)
    task = {"start": mlp}.get(run.workload) or globals()[run.workload]
    task(run).write_parquet(str(run.output), ray_remote_args=SMALL)
    settings.done()


if __name__ == "__main__":
    main()
