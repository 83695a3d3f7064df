"""The task `image-classification`: pixels → the best label, its score, and the scores of all, which are
those of transformers' `ImageClassificationPipeline`.

The input is a `FLOAT[n]` column with the pixels of one image, channel by channel and row by row
(`[3, height, width]`), normalized as the model wants them; with `--normalize`, as values from 0 to
1, which the program then normalizes by itself. With `--images`, it is a `BINARY` column of image files,
and the package says how they are resized, cropped and normalized.
"""

import argparse
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import torch

from .candidate import Candidate, Column, Images, Original, Tensors
from .classifier import Scores, best_of, label_columns
from .errors import ExportError
from .huggingface import labels_of, load, write_labels
from .preprocessing import Preprocessing
from .source import Source

# Where a folder does not say it: those of ImageNet.
IMAGE_SIZE = 224
BILINEAR = 2
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageClassifier(torch.nn.Module):
    """Pixels in; the best class's index, its score, and all scores out."""

    def __init__(
        self,
        model: torch.nn.Module,
        logits: Callable[[torch.Tensor], torch.Tensor],
        scores: torch.nn.Module,
        normalize: tuple[tuple[float, ...], tuple[float, ...]] | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.logits = logits
        self.scores = scores
        self.normalize = normalize is not None
        if normalize is not None:
            mean, deviation = (torch.tensor(values).reshape(1, -1, 1, 1) for values in normalize)
            self.register_buffer("mean", mean)
            self.register_buffer("deviation", deviation)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Classifies `[rows, channels, height, width]` pixels."""
        if self.normalize:
            pixels = (pixels - self.mean) / self.deviation
        return best_of(self.scores(self.logits(pixels)))


def image_classification(source: Source, options: argparse.Namespace) -> Candidate:
    """The candidate of an image classifier."""
    if source.torchvision is not None:
        model, labels, preset = _torchvision(source.torchvision, options)
        channels = 3
        size, normalize = preset.crop_size[0], (tuple(preset.mean), tuple(preset.std))
        resize, resample = preset.resize_size[0], preset.interpolation.value

        def files() -> Images:
            return Images((3, size, size), resize, *normalize, resample)

        def logits(pixels: torch.Tensor) -> torch.Tensor:
            return model(pixels)

        scores, original = torch.nn.Softmax(-1), None
    else:
        import transformers

        model = load(source.folder, transformers.AutoModelForImageClassification)
        labels = labels_of(model.config)
        channels = getattr(getattr(model.config, "vision_config", model.config), "num_channels", 3)
        preprocessing = Preprocessing.of(source.folder)
        size = image_size(preprocessing, model.config)
        normalize = preprocessing.normalization(MEAN, DEVIATION)
        if options.normalize:
            preprocessing.check_values()

        def files() -> Images:
            return preprocessing.images(size, (MEAN, DEVIATION), BILINEAR)

        def logits(pixels: torch.Tensor) -> torch.Tensor:
            return model(pixel_values=pixels).logits

        scores, original = Scores(model.config), _pipeline(model, labels)

    shape = (channels, size, size)
    if options.images and (options.normalize or channels != 3):
        raise ExportError(
            "--images is for models of three channels, and normalizes; leave out --normalize"
        )
    by_itself = normalize if options.normalize else None
    module = ImageClassifier(model, logits, scores, by_itself).eval()
    transform, column = Tensors(shape), Column("pixels", f"FLOAT[{math.prod(shape)}]", shape=shape)
    with torch.no_grad():
        classes = logits(*transform.example(1, 1)).shape[-1]
    if classes != len(labels):
        raise ExportError(
            f"{source.name}: the model gives {classes} scores, and config.json names {len(labels)} labels; "
            "make id2label name each of them"
        )
    if options.images:
        transform, column = files(), Column("image", "BINARY")
    # Of the early layers, which are the widest: 64 channels at half the size, several at a time.
    row_bytes = 4 * 64 * size * size
    return Candidate(
        module=module,
        inputs=(column,),
        outputs=label_columns(len(labels)),
        transform=transform,
        description=f"Image classification, {len(labels)} labels",
        activation_bytes=lambda rows: rows * row_bytes,
        write_files=lambda package: write_labels(labels, package),
        # It takes normalized pixels.
        original=None if options.normalize else original,
    )


def _pipeline(model: torch.nn.Module, labels: list[str]) -> Original:
    """The library's own way from pixels to what the model says of them."""
    import transformers

    pipeline = transformers.ImageClassificationPipeline(
        model=model, image_processor=transformers.ViTImageProcessor(), device="cpu"
    )

    @torch.no_grad()
    def classify(pixels: torch.Tensor) -> dict[str, object]:
        outputs = pipeline._forward({"pixel_values": pixels})
        ranked = pipeline.postprocess(outputs, top_k=len(labels))
        found = {"label": ranked[0]["label"], "score": ranked[0]["score"]}
        scores = {entry["label"]: entry["score"] for entry in ranked}
        if len(scores) == len(labels) > 1:
            found["scores"] = [scores[label] for label in labels]
        return found

    return Original("transformers' pipeline", classify)


def image_size(preprocessing: Preprocessing, config: object) -> int:
    """The side of the images that a model takes."""
    stated, config = preprocessing.stated, getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None)
    if isinstance(size, (list, tuple)) and len(set(size)) == 1:
        size = size[0]
    if size is None:
        # After resizing, some processors crop.
        size = stated.get("crop_size") or stated.get("size") or IMAGE_SIZE
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or IMAGE_SIZE
    if not isinstance(size, int):
        raise ExportError(
            f"{preprocessing.path}: the image size is {size}, expected one number of pixels"
        )
    return size


def _torchvision(
    name: str, options: argparse.Namespace
) -> tuple[torch.nn.Module, list[str], torch.nn.Module]:
    """A classifier with the weights of a file, or with those it downloads; its labels; and how
    torchvision preprocesses images for it."""
    from torchvision import models

    if name not in models.list_models(module=models):
        raise ExportError(
            f"torchvision/{name}: torchvision has no model of this name; examples of those it "
            "has are resnet18, resnet50 and vit_b_16"
        )
    default = models.get_model_weights(name).DEFAULT
    labels, preset = list(default.meta["categories"]), default.transforms()
    try:
        if options.weights is None:
            model = models.get_model(name, weights=default).eval().requires_grad_(False)
            return model, labels, preset
        state = _read_weights(options.weights)
        names = list(models.get_model(name, weights=None).state_dict())
        # The last weight is the head's; files need not keep the order.
        classes = state[[name for name in names if name.endswith("weight")][-1]].shape[0]
        model = models.get_model(name, weights=None, num_classes=classes)
        model.load_state_dict(state)
    except (OSError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(
            f"torchvision/{name}: its weights cannot be loaded: {reason}; pass --weights FILE with "
            "a state dictionary (.pth or .safetensors) of this model"
        ) from error
    labels = _labels(options.labels, labels, classes)
    return model.eval().requires_grad_(False), labels, preset


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A state dictionary; of a pickle, only tensors are read, never code."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _labels(path: Path | None, default: list[str], classes: int) -> list[str]:
    """One name per line, or the ones of ImageNet if there are as many classes."""
    labels = default if path is None else path.read_text(encoding="utf-8").splitlines()
    if len(labels) != classes:
        raise ExportError(
            f"the weights have {classes} classes, but there are {len(labels)} labels; pass "
            "--labels FILE with one name per line, in the order of the classes"
        )
    return labels
