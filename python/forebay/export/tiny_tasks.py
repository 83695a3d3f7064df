"""Tiny models of the tasks other than embedding, and what their own libraries compute with them.

Each entry of `MODELS` is a fixture: `build` saves it, `inputs` are the columns of test rows, and
`expected` gives the output columns that Forebay must give for these rows.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from PIL import Image
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torchvision import transforms

from . import tiny
from .texts import MIXED, PAIRS

Columns = dict[str, list]

LABELS = ("negative", "größer als", "neutral")
TAGS = ("O", "B-PER", "I-PER", "B-LOC")
PIXELS, RESIZE = 32, 40
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class Tiny:
    """A tiny model with its test."""

    build: Callable[[Path], None]
    inputs: Columns
    expected: Callable[[Path, Columns], Columns]
    # For export.py.
    arguments: tuple[str, ...] = ()


def _classifier(
    architecture: str, labels: Sequence[str] = LABELS, problem: str | None = None
) -> Tiny:
    names = {"id2label": dict(enumerate(labels)), "problem_type": problem}
    auto = transformers.AutoModelForSequenceClassification
    return Tiny(
        build=lambda folder: tiny.build_encoder(architecture, folder, auto, **names),
        inputs={"text": list(MIXED)},
        expected=_classify,
        arguments=("--task", "classification"),
    )


def _classify(folder: Path, inputs: Columns) -> Columns:
    """What transformers' own pipeline gives, one text at a time."""
    pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
    index = {name: i for i, name in pipeline.model.config.id2label.items()}
    outputs: Columns = {"label": [], "score": [], "scores": []}
    for text in inputs["text"]:
        [ranked] = pipeline([text], top_k=None, truncation=True)
        outputs["label"].append(ranked[0]["label"])
        outputs["score"].append(ranked[0]["score"])
        scores = {index[entry["label"]]: entry["score"] for entry in ranked}
        outputs["scores"].append([scores[label] for label in range(len(scores))])
    if len(index) == 1:
        del outputs["scores"]
    return outputs


def _reranker(architecture: str, activation: torch.nn.Module, labels: int = 1) -> Tiny:
    def build(folder: Path) -> None:
        auto = transformers.AutoModelForSequenceClassification
        head = folder / "head"
        tiny.build_encoder(architecture, head, auto, num_labels=labels)
        model = CrossEncoder(str(head), device="cpu", activation_fn=activation)
        model.save(str(folder))

    pairs = {"query": [query for query, _ in PAIRS], "passage": [other for _, other in PAIRS]}
    return Tiny(build, pairs, _rank)


def _rank(folder: Path, inputs: Columns) -> Columns:
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    pairs = list(zip(inputs["query"], inputs["passage"], strict=True))
    scores = torch.tensor(model.predict(pairs))
    if scores.dim() == 1:
        return {"score": scores.tolist()}
    best, index = scores.max(dim=1)
    names = model.config.id2label
    labels = [names[i] for i in index.tolist()]
    return {"label": labels, "score": best.tolist(), "scores": scores.tolist()}


def _build_sparse(folder: Path) -> None:
    tiny.build_encoder("bert", folder / "mlm", transformers.AutoModelForMaskedLM)
    first = Transformer(str(folder / "mlm"), transformer_task="fill-mask")
    SparseEncoder(modules=[first, SpladePooling("max")], device="cpu").save(str(folder))


def embed_sparse(folder: Path, inputs: Columns) -> Columns:
    """What `SparseEncoder.encode` and `decode` give, one text at a time, in the order of the vocabulary."""
    model = SparseEncoder(str(folder), device="cpu")
    ids = model.tokenizer.get_vocab()
    outputs: Columns = {"embedding": []}
    for text in inputs["text"]:
        decoded = model.decode(model.encode([text]))[0]
        pairs = sorted(decoded, key=lambda pair: ids[pair[0]])
        outputs["embedding"].append([{"token": token, "weight": weight} for token, weight in pairs])
    assert any(outputs["embedding"])
    return outputs


def _tagger(architecture: str) -> Tiny:
    names = {"id2label": dict(enumerate(TAGS))}
    auto = transformers.AutoModelForTokenClassification
    return Tiny(
        build=lambda folder: tiny.build_encoder(architecture, folder, auto, **names),
        inputs={"text": list(MIXED)},
        expected=_tag,
    )


def _tag(folder: Path, inputs: Columns) -> Columns:
    pipeline = transformers.pipeline(
        "token-classification", str(folder), device="cpu", ignore_labels=[]
    )
    outputs: Columns = {"labels": [], "scores": [], "starts": [], "ends": []}
    for text in inputs["text"]:
        tokens = pipeline(text, aggregation_strategy="none") if text else []
        for column, key in zip(outputs, ("entity", "score", "start", "end"), strict=True):
            kind = float if key == "score" else str if key == "entity" else int
            outputs[column].append([kind(token[key]) for token in tokens])
    return outputs


def _images(kind: type, *arguments: str, **config: object) -> Tiny:
    def build(folder: Path) -> None:
        torch.manual_seed(9)
        auto = transformers.AutoModelForImageClassification
        auto.from_config(kind(id2label=dict(enumerate(LABELS)), **config)).save_pretrained(folder)

    return Tiny(build, {"pixels": _pixels()}, _classify_images, arguments)


def _pixels() -> list[list[float]]:
    generator = torch.Generator().manual_seed(11)
    return torch.randn((5, 3 * PIXELS * PIXELS), generator=generator).tolist()


def _classify_images(folder: Path, inputs: Columns) -> Columns:
    model = transformers.AutoModelForImageClassification.from_pretrained(str(folder)).eval()
    pixels = torch.tensor(inputs["pixels"]).reshape(-1, 3, PIXELS, PIXELS)
    with torch.no_grad():
        scores = model(pixel_values=pixels).logits.softmax(-1)
    best, index = scores.max(dim=1)
    labels = [model.config.id2label[i] for i in index.tolist()]
    return {"label": labels, "score": best.tolist(), "scores": scores.tolist()}


def _image_files(kind: type, *, square: bool = False, **config: object) -> Tiny:
    """As `_images`, of files: the recipe is that of transformers' processor here, and ours there. Either the
    shorter side is resized and the middle cut out, or both sides are resized."""
    of_pixels = _images(kind, **config)

    def build(folder: Path) -> None:
        of_pixels.build(folder)
        steps = {"image_processor_type": "BitImageProcessor", "resample": 2, "do_center_crop": True}
        steps |= {"size": {"shortest_edge": RESIZE}, "crop_size": PIXELS}
        if square:
            steps = {"image_processor_type": "ViTImageProcessor", "size": PIXELS}
        text = json.dumps({**steps, "image_mean": MEAN, "image_std": DEVIATION})
        (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")

    def expected(folder: Path, inputs: Columns) -> Columns:
        pixels = _processed(folder, inputs["image"]).flatten(1).tolist()
        return _classify_images(folder, {"pixels": pixels})

    return Tiny(build, {"image": image_files(smooth=True)}, expected, ("--images",))


def image_files(*, smooth: bool) -> list[str]:
    """PNG files in hexadecimal, of several sizes. What is not smooth tells filters apart."""
    generator = torch.Generator().manual_seed(12)
    files = []
    for width, height in ((64, 48), (40, 80), (50, 50), (33, 41)):
        size = (height, width)
        image = torch.rand((3, *((6, 6) if smooth else size)), generator=generator)
        if smooth:
            image = torch.nn.functional.interpolate(image[None], size, mode="bicubic")[0]
        file = io.BytesIO()
        transforms.ToPILImage()(image.clamp(0, 1)).save(file, "PNG")
        files.append(file.getvalue().hex())
    return files


_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 2],
    "image_size": PIXELS,
}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": PIXELS,
    "patch_size": 8,
    "initializer_range": 0.2,
}


def _clip(task: str, inputs: Columns, *arguments: str) -> Tiny:
    return Tiny(_build_clip, inputs, _embed_clip, ("--task", task, *arguments))


def _build_clip(folder: Path) -> None:
    """As OpenAI's: the token that ends a text is the last of the vocabulary, and fills batches too."""
    first, last = "<|startoftext|>", "<|endoftext|>"
    tokenizer = tiny.byte_pairs(first, last)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    # Initial weights so wide that embeddings differ, and not so wide that a pixel which is rounded
    # otherwise weighs as much as another filter.
    sizes |= {"intermediate_size": 64, "initializer_factor": 2.0}
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": tiny.MAX_TOKENS,
        "eos_token_id": tokenizer.token_to_id(last),
        "bos_token_id": tokenizer.token_to_id(first),
        "pad_token_id": tokenizer.token_to_id(last),
    }
    torch.manual_seed(13)
    config = transformers.CLIPConfig(
        text_config={**sizes, **text},
        vision_config={**sizes, "image_size": PIXELS, "patch_size": 8},
        projection_dim=16,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=last,
        model_max_length=tiny.MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    steps = {"size": {"shortest_edge": PIXELS}, "crop_size": {"height": PIXELS, "width": PIXELS}}
    steps |= {"image_processor_type": "CLIPImageProcessor", "resample": 3, "image_mean": MEAN, "image_std": DEVIATION}
    (folder / "preprocessor_config.json").write_text(json.dumps(steps), encoding="utf-8")


def _embed_clip(folder: Path, inputs: Columns) -> Columns:
    """What transformers' CLIP gives, one row at a time."""
    model = transformers.CLIPModel.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        if "text" in inputs:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
            rows = [tokenizer(text, truncation=True, return_tensors="pt") for text in inputs["text"]]
            pooled = [model.text_model(**row).pooler_output for row in rows]
            embedded = model.text_projection(torch.cat(pooled))
        else:
            pixels = _clip_pixels(folder, inputs)
            pooled = model.vision_model(pixel_values=pixels).pooler_output
            embedded = model.visual_projection(pooled)
    return {"embedding": (embedded / embedded.norm(dim=-1, keepdim=True)).tolist()}


def _clip_pixels(folder: Path, inputs: Columns) -> torch.Tensor:
    if "pixels" in inputs:
        return torch.tensor(inputs["pixels"]).reshape(-1, 3, PIXELS, PIXELS)
    return _processed(folder, inputs["image"])


def _processed(folder: Path, files: list[str]) -> torch.Tensor:
    """By the folder's own processor, of Pillow: one image at a time."""
    processor = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    images = (Image.open(io.BytesIO(bytes.fromhex(file))).convert("RGB") for file in files)
    return torch.cat([processor(images=image, return_tensors="pt")["pixel_values"] for image in images])


MODELS: dict[str, Tiny] = {
    "classification-bert": _classifier("bert"),
    "classification-distilbert": _classifier("distilbert", LABELS[:2]),
    "classification-roberta": _classifier("roberta", problem="multi_label_classification"),
    "classification-xlm-roberta": _classifier("xlm-roberta"),
    "classification-electra": _classifier("electra", LABELS[:1]),
    "classification-modernbert": _classifier("modernbert"),
    "classification-gpt2": _classifier("gpt2"),
    "classification-mpnet": _classifier("mpnet", LABELS[:1], problem="regression"),
    "rerank-bert": _reranker("bert", torch.nn.Sigmoid()),
    "rerank-roberta": _reranker("roberta", torch.nn.Identity()),
    "rerank-xlm-roberta": _reranker("xlm-roberta", torch.nn.Sigmoid()),
    "rerank-electra": _reranker("electra", torch.nn.Identity(), labels=3),
    "rerank-modernbert": _reranker("modernbert", torch.nn.Sigmoid()),
    "sparse-bert": Tiny(_build_sparse, {"text": list(MIXED)}, embed_sparse),
    "tokens-bert": _tagger("bert"),
    "tokens-roberta": _tagger("roberta"),
    "tokens-distilbert": _tagger("distilbert"),
    "tokens-xlm-roberta": _tagger("xlm-roberta"),
    "tokens-electra": _tagger("electra"),
    "tokens-modernbert": _tagger("modernbert"),
    "tokens-gpt2": _tagger("gpt2"),
    "images-resnet": _images(transformers.ResNetConfig, **_RESNET),
    "images-resnet-files": _image_files(transformers.ResNetConfig, **_RESNET),
    "images-vit-files": _image_files(transformers.ViTConfig, **VIT),
    "images-vit-square-files": _image_files(transformers.ViTConfig, square=True, **VIT),
    "images-vit": _images(transformers.ViTConfig, **VIT),
    "clip-text": _clip("clip-text", {"text": list(MIXED)}),
    "clip-image": _clip("clip-image", {"pixels": _pixels()}),
    "clip-image-files": _clip("clip-image", {"image": image_files(smooth=False)}, "--images"),
}
