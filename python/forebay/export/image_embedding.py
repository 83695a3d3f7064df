"""The task `image-embedding`: pixels → one vector, as transformers' feature extraction pools it."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from .candidate import Candidate, Column, Original, Tensors
from .errors import ExportError
from .huggingface import load, load_config
from .preprocessing import Preprocessing
from .vision import BILINEAR, DEVIATION, MEAN, image_size


class Pooled(torch.nn.Module):
    """`[rows, channels, size, size]` pixels in; one vector per row out."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the model pools; of models that project it, the projection."""
        outputs = self.model(pixel_values=pixels)
        embedding = outputs.get("image_embeds")
        if embedding is None:
            embedding = outputs.get("pooler_output")
        if embedding is None:
            # Without a pooler of its own: the token that stands for all.
            embedding = outputs.last_hidden_state[:, 0]
        return embedding.flatten(1)  # ResNet's and others' are 1 pixel high and wide.


def image_embedding(folder: Path, images: bool) -> Candidate:
    """The candidate of an encoder of images: of pixels, or of image files."""
    model = _load(folder)
    preprocessing = Preprocessing.of(folder)
    size = image_size(preprocessing, model.config)
    channels = getattr(getattr(model.config, "vision_config", model.config), "num_channels", 3)
    shape = (channels, size, size)
    transform, column = Tensors(shape), Column("pixels", f"FLOAT[{math.prod(shape)}]", shape=shape)
    if images:
        if channels != 3:
            raise ExportError("--images is for models of three channels; leave it out to pass pixels")
        transform = preprocessing.images(size, (MEAN, DEVIATION), BILINEAR)
        column = Column("image", "BINARY")
    _check_pooled(model, transform.example(1, 1)[0])
    module = Pooled(model).eval()
    with torch.no_grad():
        dimensions = module(*transform.example(1, 1)).shape[1]
    return Candidate(
        module=module,
        inputs=(column,),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"Image embeddings, {dimensions} dimensions",
        activation_bytes=lambda rows: rows * 4 * 64 * size * size,
        original=Original(*_call(model)),
    )


def _check_pooled(model: transformers.PreTrainedModel, pixels: torch.Tensor) -> None:
    """Refuses models that give a map of features and no vector."""
    with torch.no_grad():
        outputs = model(pixel_values=pixels)
    is_pooled = any(outputs.get(name) is not None for name in ("image_embeds", "pooler_output"))
    has_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
    if not is_pooled and not has_token:
        raise ExportError(
            f"{type(model).__name__} pools nothing, and has no token that stands for all of an image; models "
            "with a pooler or such a token can be exported"
        )


def _load(folder: Path) -> transformers.PreTrainedModel:
    """The class that config.json names; ViT's pooler is left out where the folder has no weights of it."""
    config = load_config(folder)
    named = getattr(transformers, (config.architectures or [""])[0], None)
    kind = named if named is not None and hasattr(named, "from_pretrained") else transformers.AutoModel
    try:
        return load(folder, kind)
    except ExportError as error:
        if "lacks weights" not in str(error) or "pooler." not in str(error):
            raise
        return load(folder, kind, add_pooling_layer=False)


def _call(model: transformers.PreTrainedModel) -> tuple[str, Callable[..., dict[str, object]]]:
    """The library's own call for normalized pixels."""
    pipeline = transformers.ImageFeatureExtractionPipeline(
        model=model, image_processor=transformers.ViTImageProcessor(), device="cpu"
    )

    @torch.no_grad()
    def embed(pixels: torch.Tensor) -> dict[str, object]:
        outputs = pipeline._forward({"pixel_values": pixels})
        if "image_embeds" in outputs:
            return {"embedding": outputs["image_embeds"][0].tolist()}
        if outputs.get("pooler_output") is None:
            return {"embedding": pipeline.postprocess(outputs)[0][0]}
        pooled = pipeline.postprocess(outputs, pool=True, return_tensors=True)
        return {"embedding": pooled[0].flatten().tolist()}

    return "transformers' feature extraction", embed
