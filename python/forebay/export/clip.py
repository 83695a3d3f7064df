"""The tasks `clip-image` and `clip-text`: the two halves of a CLIP model, one package each.

Both give vectors of length 1 in one space, so `inner_product(image, text)` is how well they fit.
"""

import math
from pathlib import Path

import torch
import transformers

from .candidate import (
    Candidate,
    Column,
    Images,
    Original,
    Tensors,
    encoder_activation_bytes,
)
from .errors import ExportError
from .huggingface import load, load_tokenizer, max_tokens
from .preprocessing import Preprocessing
from .tokenizer import token_transform, write_tokenizer

# Where a folder does not say it: those of OpenAI's models.
BICUBIC = 3
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class ImageEncoder(torch.nn.Module):
    """`[rows, 3, size, size]` pixels in; one vector per row out."""

    def __init__(self, model: transformers.CLIPModel) -> None:
        super().__init__()
        self.encoder = model.vision_model
        self.projection = model.visual_projection

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeds images."""
        pooled = self.encoder(pixel_values=pixels).pooler_output
        return torch.nn.functional.normalize(self.projection(pooled), dim=-1)


class TextEncoder(torch.nn.Module):
    """`[rows, tokens]` ids in; one vector per row out."""

    def __init__(self, model: transformers.CLIPModel) -> None:
        super().__init__()
        self.encoder = model.text_model
        self.projection = model.text_projection
        end = model.config.text_config.eos_token_id
        # OpenAI's configurations say 2, and their models mean the last of the vocabulary.
        self.end = None if end == 2 else end

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds texts, by the first token of each that ends it; batches may be filled with it too."""
        states = self.encoder(input_ids=input_ids).last_hidden_state
        ends = input_ids if self.end is None else (input_ids == self.end).long()
        end = (ends * attention_mask).argmax(dim=1).reshape(-1, 1, 1).expand(-1, 1, states.shape[2])
        pooled = states.gather(1, end).squeeze(1)
        return torch.nn.functional.normalize(self.projection(pooled), dim=-1)


def clip_image(folder: Path, images: bool) -> Candidate:
    """The candidate of the half for images: of pixels, or of image files."""
    model = _load(folder)
    size = model.config.vision_config.image_size
    shape = (model.config.vision_config.num_channels, size, size)
    transform, column = Tensors(shape), Column("pixels", f"FLOAT[{math.prod(shape)}]", shape=shape)
    if images:
        transform, column = _files(folder, shape), Column("image", "BINARY")
    dimensions = model.config.projection_dim
    width = model.config.vision_config.hidden_size
    patches = (size // model.config.vision_config.patch_size) ** 2 + 1
    return Candidate(
        module=ImageEncoder(model).eval(),
        inputs=(column,),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"CLIP image embeddings, {dimensions} dimensions",
        activation_bytes=lambda rows: 4 * rows * patches * (16 * width + 24 * patches),
    )


def clip_text(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of the half for texts; `tokens` overrides the limit that the folder states."""
    model, tokenizer = _load(folder), load_tokenizer(folder)
    config = model.config.text_config
    stated = min(tokenizer.model_max_length, config.max_position_embeddings)
    longest = max_tokens(model.text_model, tokenizer, stated, tokens)
    transform = token_transform(tokenizer, model.text_model, longest)
    dimensions = model.config.projection_dim

    def preprocess(text: str) -> dict[str, torch.Tensor]:
        return tokenizer([text], truncation=True, max_length=longest, return_tensors="pt")

    @torch.no_grad()
    def embed(text: str) -> dict[str, object]:
        pooled = model.get_text_features(**preprocess(text)).pooler_output
        return {"embedding": torch.nn.functional.normalize(pooled, dim=-1)[0].tolist()}

    def write_files(package: Path) -> None:
        write_tokenizer(tokenizer, package / "tokenizer.json", transform.max_tokens, preprocess)

    return Candidate(
        module=TextEncoder(model).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"CLIP text embeddings, {dimensions} dimensions",
        activation_bytes=encoder_activation_bytes(config, transform.max_tokens),
        write_files=write_files,
        original=Original("CLIPModel.get_text_features", embed),
    )


def _load(folder: Path) -> transformers.CLIPModel:
    return load(folder, transformers.CLIPModel)


def _files(folder: Path, shape: tuple[int, int, int]) -> Images:
    """How the folder's processor makes pixels of images."""
    if shape[0] != 3:
        raise ExportError(
            f"the model takes {shape[0]} channels, and image files give 3; leave out --images to pass "
            "pixels"
        )
    return Preprocessing.of(folder).images(shape[-1], (MEAN, DEVIATION), BICUBIC)
