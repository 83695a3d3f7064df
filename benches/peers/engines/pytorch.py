"""Plain PyTorch in one process: what one writes without an engine.

- The whole input is read at once, so `encode` sorts all texts by length: the fewest padded tokens.
- PyTorch's operators use all cores; one model, no copies of it.
- Where there is CPU work in front of the model, a DataLoader does it in worker processes, as
  PyTorch's performance guide says: as many as cores, two batches ahead each (the default).
- Defaults: a loop over batches of 32 as they come, which is the model card's example in a loop; for
  images a batch at a time, without workers.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from engines import settings, tables, work
from engines.settings import Run


def embed(run: Run) -> Iterator[pa.Table]:
    """Texts in, vectors out."""
    table = read(run)
    texts = table["text"].to_pylist()
    if not run.defaults:
        vectors = work.Embedder(settings.CORES)(texts)
        yield pa.table({"id": table["id"], "embedding": tables.vectors(vectors)})
        return
    embedder = work.Embedder(None)
    for start in range(0, len(texts), 32):
        vectors = embedder(texts[start : start + 32])
        ids = table["id"].slice(start, 32)
        yield pa.table({"id": ids, "embedding": tables.vectors(vectors)})


def chunk(run: Run) -> Iterator[pa.Table]:
    """Documents in, vectors of their chunks out."""
    table = read(run)
    chunker, embedder = work.Chunker(), work.Embedder(settings.CORES)
    ids, texts = [], []
    for at, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
        chunks = chunker(text)
        ids += [at] * len(chunks)
        texts += chunks
    vectors = tables.vectors(embedder(texts))
    yield pa.table({"id": ids, "chunk": texts, "embedding": vectors})


class Images:
    """A dataset of files; an item is its name and its pixels."""

    def __init__(self, names: list[str], folder: str, classifier: work.Classifier) -> None:
        self.names, self.folder, self.classifier = names, folder, classifier

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> tuple[str, object]:
        with open(f"{self.folder}/{self.names[at]}", "rb") as file:
            return self.names[at], self.classifier.pixels(file.read())


def images(run: Run) -> Iterator[pa.Table]:
    """JPEG files in, labels and scores out."""
    from torch.utils.data import DataLoader

    threads = None if run.defaults else settings.CORES
    classifier = work.Classifier(run.data / "models", threads)
    dataset = Images(read(run)["path"].to_pylist(), run.images, classifier)
    workers = 0 if run.defaults else settings.CORES
    for names, pixels in DataLoader(dataset, batch_size=settings.IMAGE_ROWS, num_workers=workers):
        labels, scores = classifier.classify(pixels.numpy())
        yield pa.table({"path": list(names), "label": labels, "score": scores})


class Pixels:
    """The same without a model."""

    def __init__(self, names: list[str], folder: str) -> None:
        self.names, self.folder, self.recipe = names, folder, work.recipe()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> tuple[str, object]:
        with open(f"{self.folder}/{self.names[at]}", "rb") as file:
            return self.names[at], self.recipe(file.read())


def decode(run: Run) -> Iterator[pa.Table]:
    """JPEG files are decoded in workers; the device takes their pixels in this process."""
    from torch.utils.data import DataLoader

    device = work.Accelerator(settings.DECODE_SERVICE_S)
    dataset = Pixels(read(run)["path"].to_pylist(), run.images)
    rows = settings.DECODE_ROWS
    for names, pixels in DataLoader(dataset, batch_size=rows, num_workers=settings.CORES):
        device()
        yield pa.table({"path": list(names), "bytes": [image.numel() for image in pixels]})


def mlp(run: Run) -> Iterator[pa.Table]:
    """Vectors in, a number out; 64 Ki rows at a time stay in the cores' caches."""
    model = work.Mlp(run.data / "models", settings.CORES)
    for batch in batches(run, 65536):
        scores = model(tables.matrix(batch["features"]))
        yield pa.table({"id": batch["id"], "score": scores})


def accelerator(run: Run) -> Iterator[pa.Table]:
    """Hashing in workers, the device in this process."""
    device = work.Accelerator()
    for ids, hashes in loader(read(run), work.hashed, settings.SERVICE_ROWS):
        device()
        yield pa.table({"id": ids, "hash": hashes})


def expand(run: Run) -> Iterator[pa.Table]:
    """Texts are made large in workers; the device takes a few at a time."""
    device = work.Accelerator()
    for ids, payloads in loader(read(run), work.expand, settings.EXPAND_ROWS):
        device()
        yield pa.table({"id": ids, "bytes": [len(payload) for payload in payloads]})


class Mapped:
    """A dataset of texts; an item is an id and what the work makes of its text."""

    def __init__(self, table: pa.Table, task: object) -> None:
        self.ids, self.texts = table["id"].to_pylist(), table["text"].to_pylist()
        self.task = task

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> tuple[int, object]:
        return self.ids[at], self.task(self.texts[at])


def loader(table: pa.Table, task: object, rows: int) -> Iterator[tuple[list, list]]:
    """Batches of ids and results."""
    from torch.utils.data import DataLoader

    return iter(
        DataLoader(
            Mapped(table, task),
            batch_size=rows,
            num_workers=settings.CORES,
            collate_fn=lambda items: tuple(zip(*items, strict=True)),
        )
    )


def read(run: Run) -> pa.Table:
    """The whole input."""
    return pq.read_table(run.rows)


def batches(run: Run, rows: int) -> Iterator[pa.RecordBatch]:
    """The input, so many rows at a time."""
    import pyarrow.dataset as ds

    return ds.dataset(run.rows).to_batches(batch_size=rows)


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    task = {"start": mlp}.get(run.workload) or globals()[run.workload]
    run.output.mkdir(parents=True)
    writer = None
    for table in task(run):
        writer = writer or pq.ParquetWriter(run.output / "0.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    settings.done()


if __name__ == "__main__":
    main()
