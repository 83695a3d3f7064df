"""sentence-transformers with its backends OpenVINO and ONNX Runtime, and fastembed, at their defaults: what
their pages say to write, but for the precision. The model was exported before by the first one's own call."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engines import scripts, settings, tables, work
from engines.settings import Run


def sentence_transformers(backend: str, folder: Path, texts: list[str]) -> np.ndarray:
    """By one of the backends."""
    from sentence_transformers import SentenceTransformer

    # Else OpenVINO rounds to bf16 on CPUs that have instructions for it, and is no longer equal within 1e-3.
    exact = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}} if backend == "openvino" else {}
    model = SentenceTransformer(str(folder), backend=backend, device="cpu", model_kwargs=exact)
    return model.encode(texts, show_progress_bar=False)


def fastembed(folder: Path, texts: list[str]) -> np.ndarray:
    """A model of one's own, as its page on such models says."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="own/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="own/minilm"),
        dim=settings.DIMENSIONS,
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("own/minilm", specific_model_path=str(folder))
    return np.stack(list(model.embed(texts)))


def encode(engine: str, run: Run, texts: list[str]) -> np.ndarray:
    """Rows of 384 numbers."""
    folder = run.data / "models"
    if engine == "fastembed":
        return fastembed(folder / "onnx", texts)
    backend = engine.removeprefix("sentence_")
    return sentence_transformers(backend, folder / backend, texts)


def results(engine: str, run: Run) -> Iterator[pa.Table]:
    """Texts, or documents, in; vectors out."""
    table = pq.read_table(run.rows)
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    if run.workload == "chunk":
        chunker = work.Chunker()
        cut = [(at, text) for at, whole in zip(ids, texts, strict=True) for text in chunker(whole)]
        ids, texts = map(list, zip(*cut, strict=True))
        vectors = tables.vectors(encode(engine, run, texts))
        yield pa.table({"id": ids, "chunk": texts, "embedding": vectors})
    else:
        yield pa.table({"id": ids, "embedding": tables.vectors(encode(engine, run, texts))})


def main() -> None:
    """Runs the command line, whose first argument names the engine."""
    engine = sys.argv.pop(1)
    run = settings.parse()
    scripts.write(run, results(engine, run))


if __name__ == "__main__":
    main()
