"""Forebay: SQL for its shell. Defaults, but for the memory limit where memory is the point."""

from dataclasses import dataclass
from pathlib import Path

from engines import settings
from engines.settings import Run

MINILM = f"CREATE TEMPORARY MODEL minilm LOCATION '{settings.MINILM_PACKAGE}';"


@dataclass(frozen=True)
class Query:
    """A workload in SQL."""

    select: str
    model: str = ""
    arguments: tuple[str, ...] = ()


def command(binary: Path, run: Run) -> list[str]:
    """The shell that runs a workload, and says when the last row is written."""
    query = QUERIES[run.workload](run)
    text = (
        f"{MINILM if not query.model else query.model}"
        f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{run.rows}/';"
        f"COPY ({query.select}) TO '{run.output}/' STORED AS PARQUET;"
        f"SELECT '{settings.WRITTEN}' AS state;"
    )
    return [str(binary), "shell", "--quiet", "--format", "csv", *query.arguments, "-c", text]


def embed(run: Run) -> Query:
    """Texts in, vectors out."""
    return Query("SELECT id, embedding FROM ml_predict(TABLE t, MODEL minilm, DESCRIPTOR(text))")


def chunk(run: Run) -> Query:
    """Documents in, vectors of their chunks out."""
    size = f"{settings.CHUNK_TOKENS}, {settings.CHUNK_OVERLAP}"
    cuts = f"SELECT id, unnest(text_chunk(text, {size}, 'minilm')) AS chunk FROM t"
    return Query(
        f"SELECT id, chunk, embedding FROM ml_predict(({cuts}), MODEL minilm, DESCRIPTOR(chunk))"
    )


def images(run: Run) -> Query:
    """JPEG files in, labels and scores out."""
    files = f"SELECT url AS path, bytes FROM read_files('{run.images}/*.jpg')"
    return Query(
        f"SELECT path, label, score FROM ml_predict(({files}), MODEL resnet18, DESCRIPTOR(bytes))",
        model=location("resnet18", run),
    )


def decode(run: Run) -> Query:
    """JPEG files in; the device takes their pixels."""
    files = f"SELECT url AS path, bytes FROM read_files('{run.images}/*.jpg')"
    return Query(
        f"SELECT path, output FROM ml_predict(({files}), MODEL accelerator, DESCRIPTOR(bytes))",
        model=location("accelerator", run),
        arguments=("--emulated-accelerators", "1"),
    )


def mlp(run: Run) -> Query:
    """Vectors in, a number out."""
    return Query(
        "SELECT id, output AS score FROM ml_predict(TABLE t, MODEL mlp, DESCRIPTOR(features))",
        model=location("mlp", run),
    )


def accelerator(run: Run) -> Query:
    """Hashing, then the device."""
    work = (
        f"SELECT id, encode(sha512(repeat(text, {settings.HASHED_COPIES})), 'hex') AS hash FROM t"
    )
    return Query(
        f"SELECT id, hash, output FROM ml_predict(({work}), MODEL accelerator, DESCRIPTOR(hash))",
        model=location("accelerator", run),
        arguments=("--emulated-accelerators", "1"),
    )


def expand(run: Run) -> Query:
    """Texts are made large; the device takes a few at a time."""
    grown = f"SELECT id, repeat(text, {settings.EXPAND_COPIES}) AS payload FROM t"
    sized = f"SELECT id, octet_length(payload) AS bytes, payload FROM ({grown})"
    return Query(
        "SELECT id, bytes, output FROM "
        f"ml_predict(({sized}), MODEL accelerator, DESCRIPTOR(payload))",
        model=location("accelerator", run),
        arguments=("--emulated-accelerators", "1", "--memory-limit", "256MB"),
    )


def location(name: str, run: Run) -> str:
    """The model of a workload's own."""
    return f"CREATE TEMPORARY MODEL {name} LOCATION '{run.data / 'models' / name}';"


QUERIES = {
    "embed": embed,
    "chunk": chunk,
    "images": images,
    "decode": decode,
    "mlp": mlp,
    "start": mlp,
    "accelerator": accelerator,
    "expand": expand,
}
