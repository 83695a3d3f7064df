"""The workloads: how many rows at full size, and which engines have a variant of their tutorial."""

from dataclasses import dataclass

ENGINES = {
    "forebay": "Forebay",
    "pytorch": "PyTorch",
    "datafusion_udf": "DataFusion-Python",
    "daft_frame": "Daft",
    "ray_data": "Ray Data",
    "spark": "PySpark",
}
# What runs a model and is no engine: in an environment of their own.
BACKENDS = {
    "openvino_script": "OpenVINO, a script",
    "onnxruntime_script": "ONNX Runtime, a script",
    "sentence_openvino": "sentence-transformers, OpenVINO",
    "sentence_onnx": "sentence-transformers, ONNX Runtime",
    "fastembed": "fastembed",
}
SCRIPTS = ("openvino_script", "onnxruntime_script")
DEFAULTS = "-defaults"


@dataclass(frozen=True)
class Workload:
    """What is run."""

    title: str
    rows: int
    has_defaults: bool = False
    backends: tuple[str, ...] = ()
    least: int = 64

    def scaled(self, scale: float) -> int:
        """Rows at a part of the full size."""
        return max(self.least, round(self.rows * scale))


WORKLOADS = {
    "embed": Workload("Texts to embeddings, 15% duplicates", 8_000, True, tuple(BACKENDS)),
    "chunk": Workload("Documents to chunks to embeddings", 240, False, tuple(BACKENDS), 8),
    "images": Workload("JPEG files to labels, ResNet-18", 1_500, True, SCRIPTS),
    "decode": Workload("JPEG files to pixels, emulated accelerator", 6_000),
    "mlp": Workload("A cheap model, 32 numbers a row", 1_000_000),
    "accelerator": Workload("Emulated accelerator, CPU work in front", 25_600),
    "expand": Workload("Rows that become 4 MiB, emulated accelerator", 400),
    "start": Workload("Start to first rows", 64),
}


def title(engine: str) -> str:
    """An engine's name as people write it."""
    if engine.endswith(DEFAULTS):
        return f"{ENGINES[engine.removesuffix(DEFAULTS)]}, defaults"
    return {**ENGINES, **BACKENDS}[engine]
