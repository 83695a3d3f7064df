"""More ONNX models for Rust tests: folders as they are on the hub, and packages that the exporter makes.

As `onnx_fixtures.py` lays them out. What is expected is what transformers' pipelines, or
sentence-transformers, give for the same folder.
"""

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import torch
import transformers
from onnxruntime.transformers.float16 import convert_float_to_float16
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from . import command, tiny
from .errors import ExportError
from .onnx_fixtures import Columns, arguments_of, export_model, pooled_by_onnx_runtime, write_reference
from .reader import run
from .reference import embed
from .texts import MIXED
from .tiny_tasks import LABELS, MODELS, PIXELS, VIT, image_files

TAGGERS = ("tokens-bert", "tokens-roberta")
# Of each task one that the exporter makes, which are of all kinds of outputs.
PACKAGES = (
    "classification-roberta",
    "classification-electra",
    "rerank-electra",
    "tokens-bert",
    "sparse-bert",
    "images-resnet",
    "images-vit-square-files",
    "clip-text",
    "clip-image",
)
_WEIGHTS = shutil.ignore_patterns("*.safetensors")


def make(output: Path) -> None:
    """Writes all of them."""
    for name in TAGGERS:
        _tagger(name, output / name)
    _dense(output / "dense")
    _half(output / "bert", output / "half")
    _image_classifier(output / "image-vit-files", "ViT", transformers.ViTConfig, VIT)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}
    _image_classifier(output / "image-convnext-files", "ConvNext", transformers.ResNetConfig, sizes)
    _image_embedding(output / "image-embedding-files")
    _packages(output)
    _rounded(output / "package-int8")


def _tagger(name: str, folder: Path) -> None:
    model = MODELS[name]
    with tempfile.TemporaryDirectory() as work:
        source = Path(work)
        model.build(source)
        auto = transformers.AutoModelForTokenClassification
        loaded = auto.from_pretrained(source, attn_implementation="eager")
        shutil.copytree(source, folder / "model", ignore=_WEIGHTS)
        export_model(loaded, arguments_of(source), "logits", folder / "model/onnx/model.onnx")
        write_reference(folder, model.inputs, model.expected(source, model.inputs))


def _dense(folder: Path) -> None:
    """Two matrices behind the pooling, one with a function and one without."""
    with tempfile.TemporaryDirectory() as work:
        tiny.build_encoder("bert", Path(work) / "encoder")
        torch.manual_seed(8)
        stages = [
            Pooling(tiny.HIDDEN, "mean"),
            Dense(tiny.HIDDEN, 20),
            Dense(20, 12, bias=False, activation_function=torch.nn.Identity()),
            Normalize(),
        ]
        source = Path(work) / "model"
        transformer = Transformer(str(Path(work) / "encoder"))
        SentenceTransformer(modules=[transformer, *stages], device="cpu").save(str(source))
        model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager")
        shutil.copytree(source, folder / "model")
        # The encoder's, which are in the program.
        (folder / "model/model.safetensors").unlink()
        program = folder / "model/onnx/model.onnx"
        export_model(model, arguments_of(source), "last_hidden_state", program)
        write_reference(folder, {"text": list(MIXED)}, {"embedding": embed(source, MIXED).tolist()})


def _half(source: Path, folder: Path) -> None:
    """A second program, in numbers of 16 bits."""
    shutil.copytree(source / "model", folder / "model")
    program = folder / "model/onnx/model_fp16.onnx"
    whole = onnx.load(folder / "model/onnx/model.onnx")
    onnx.save(convert_float_to_float16(whole), program)
    embeddings = pooled_by_onnx_runtime(folder / "model", program)
    write_reference(folder, {"text": list(MIXED)}, {"embedding": embeddings})


def _export_pixels(model: torch.nn.Module, result: str, path: Path) -> None:
    path.parent.mkdir(parents=True)

    class Program(torch.nn.Module):
        """With one result."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            """The named one."""
            return self.model(pixel_values=pixels)[result]

    torch.onnx.export(
        Program(),
        (torch.zeros(2, 3, PIXELS, PIXELS),),
        str(path),
        input_names=["pixel_values"],
        output_names=[result],
        dynamic_axes={"pixel_values": {0: "batch_size"}, result: {0: "batch_size"}},
        dynamo=False,
    )


def _of_images(
    folder: Path, model: transformers.PreTrainedModel, processor: Mapping[str, object], result: str
) -> None:
    model.save_pretrained(folder / "source")
    text = json.dumps(processor)
    (folder / "source/preprocessor_config.json").write_text(text, encoding="utf-8")
    shutil.copytree(folder / "source", folder / "model", ignore=_WEIGHTS)
    _export_pixels(model, result, folder / "model/onnx/model.onnx")


def _expect(folder: Path, task: str, outputs: Callable[[object, list[Image.Image]], Columns]) -> None:
    """What transformers' own pipeline gives for the image files, by its own processor of Pillow."""
    source = folder / "source"
    processor = transformers.AutoImageProcessor.from_pretrained(str(source), backend="pil")
    pipeline = transformers.pipeline(task, str(source), image_processor=processor, device="cpu")
    files = image_files(smooth=True)
    images = [Image.open(io.BytesIO(bytes.fromhex(file))).convert("RGB") for file in files]
    write_reference(folder, {"image": files}, outputs(pipeline, images))
    shutil.rmtree(source)


def _image_classifier(folder: Path, processor: str, kind: type, sizes: Mapping[str, object]) -> None:
    torch.manual_seed(9)
    config = kind(id2label=dict(enumerate(LABELS)), **sizes)
    model = transformers.AutoModelForImageClassification.from_config(config)
    stated = {"image_processor_type": f"{processor}ImageProcessor", "size": PIXELS, "resample": 2}
    _of_images(folder, model, stated, "logits")

    def classify(pipeline: transformers.Pipeline, images: list[Image.Image]) -> Columns:
        columns: Columns = {"label": [], "score": [], "scores": []}
        for ranked in (pipeline(image, top_k=len(LABELS)) for image in images):
            columns["label"].append(ranked[0]["label"])
            columns["score"].append(ranked[0]["score"])
            scores = {entry["label"]: entry["score"] for entry in ranked}
            columns["scores"].append([scores[label] for label in LABELS])
        return columns

    _expect(folder, "image-classification", classify)


def _image_embedding(folder: Path) -> None:
    torch.manual_seed(10)
    model = transformers.ViTModel(transformers.ViTConfig(**VIT))
    stated = {"feature_extractor_type": "ViTFeatureExtractor", "size": PIXELS}
    _of_images(folder, model, stated, "pooler_output")

    def pooled(pipeline: transformers.Pipeline, images: list[Image.Image]) -> Columns:
        return {"embedding": [pipeline(image, pool=True)[0] for image in images]}

    _expect(folder, "image-feature-extraction", pooled)


def _packages(output: Path) -> None:
    """What `model export --format onnx` makes."""
    for name in ("bert", *PACKAGES):
        folder = output / f"package-{name}"
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            source, more = Path(work), ()
            if name in MODELS:
                MODELS[name].build(source)
                inputs, more = MODELS[name].inputs, MODELS[name].arguments
                outputs = MODELS[name].expected(source, inputs)
            else:
                tiny.build_model(name, source)
                source, inputs = source / "model", {"text": list(MIXED)}
                outputs = {"embedding": embed(source, MIXED).tolist()}
            request = ["--source", str(source), "--output", str(folder / "model"), "--format", "onnx"]
            about = ["--name", f"tiny-{name}", "--license", "CC0-1.0", "--origin", "random weights"]
            if command.main([*request, *about, *more]) != 0:
                raise ExportError(f"the fixture package-{name} cannot be exported")
        write_reference(folder, inputs, outputs)


def sample(rows: int) -> list[str]:
    """As many different texts of words that the tokenizers of tiny models know."""
    words = " ".join(tiny.SENTENCES).split()
    return [" ".join(words[row % 7 : 9 + row % 13 : 1 + row % 3] + [str(row)]) for row in range(rows)]


def _rounded(folder: Path) -> None:
    """A package in 8 bits: its own program, by ONNX Runtime's Python, is what is expected."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        tiny.build_model("bert", Path(work))
        texts = Path(work) / "sample.txt"
        texts.write_text("\n".join(sample(128)), encoding="utf-8")
        request = ["--source", str(Path(work) / "model"), "--output", str(folder / "model")]
        more = ["--format", "onnx", "--precision", "int8", "--sample", str(texts)]
        if command.main([*request, "--name", "tiny-int8", "--license", "CC0-1.0", *more]) != 0:
            raise ExportError("the fixture package-int8 cannot be exported")
    inputs = {"text": list(MIXED)}
    write_reference(folder, inputs, run(folder / "model", inputs, 1))
