"""The tasks `clip-image` and `clip-text`: the two halves of a CLIP or SigLIP model, one package each.

Both give vectors of length 1 in one space, so `inner_product(image, text)` is how well they fit.
"""

import math
from pathlib import Path

import torch
import transformers

from .candidate import (
    Candidate,
    Column,
    Original,
    Tensors,
    Tokens,
    encoder_activation_bytes,
)
from .errors import ExportError
from .huggingface import load, load_config, load_tokenizer, max_tokens
from .preprocessing import Preprocessing
from .tokenizer import token_transform, write_tokenizer

# Where a folder does not say it: those of OpenAI's models, and of Google's.
BICUBIC = 3
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SIGLIP = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_KINDS = {"clip": transformers.CLIPModel, "siglip": transformers.SiglipModel}


class ImageEncoder(torch.nn.Module):
    """`[rows, 3, size, size]` pixels in; one vector per row out."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeds images."""
        embedded = self.model.get_image_features(pixel_values=pixels).pooler_output
        return torch.nn.functional.normalize(embedded, dim=-1)


class ClipTextEncoder(torch.nn.Module):
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


class SiglipTextEncoder(torch.nn.Module):
    """The same of SigLIP, whose texts are always filled up to one length, and which looks at all of it."""

    def __init__(self, model: transformers.SiglipModel, pad_id: int) -> None:
        super().__init__()
        self.encoder = model.text_model
        self.length = model.config.text_config.max_position_embeddings
        self.pad_id = pad_id

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds texts, however far a batch is padded."""
        ids = torch.where(attention_mask > 0, input_ids, self.pad_id)
        missing = self.length - ids.shape[1]
        ids = torch.nn.functional.pad(ids, (0, missing), value=self.pad_id)
        return torch.nn.functional.normalize(self.encoder(input_ids=ids).pooler_output, dim=-1)


def clip_image(folder: Path, images: bool) -> Candidate:
    """The candidate of the half for images: of pixels, or of image files."""
    model = _load(folder)
    config = model.config.vision_config
    size = config.image_size
    shape = (config.num_channels, size, size)
    transform, column = Tensors(shape), Column("pixels", f"FLOAT[{math.prod(shape)}]", shape=shape)
    if images:
        if shape[0] != 3:
            raise ExportError(
                f"the model takes {shape[0]} channels, and image files give 3; leave out --images to "
                "pass pixels"
            )
        default = CLIP if model.config.model_type == "clip" else SIGLIP
        transform = Preprocessing.of(folder).images(size, default, BICUBIC)
        column = Column("image", "BINARY")
    patches = (size // config.patch_size) ** 2 + 1
    module = ImageEncoder(model).eval()
    dimensions = module(*transform.example(1, 1)).shape[1]

    @torch.no_grad()
    def embed(pixels: torch.Tensor) -> dict[str, object]:
        pooled = model.get_image_features(pixel_values=pixels).pooler_output
        return {"embedding": (pooled / pooled.norm(dim=-1, keepdim=True))[0].tolist()}

    return Candidate(
        module=module,
        inputs=(column,),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"{_name(model)} image embeddings, {dimensions} dimensions",
        activation_bytes=lambda rows: 4 * rows * patches * (16 * config.hidden_size + 24 * patches),
        original=Original(f"{type(model).__name__}.get_image_features", embed),
    )


def clip_text(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of the half for texts; `tokens` overrides the limit that the folder states."""
    model, tokenizer = _load(folder), load_tokenizer(folder)
    config = model.config.text_config
    stated = min(tokenizer.model_max_length, config.max_position_embeddings)
    longest = max_tokens(model.text_model, tokenizer, stated, tokens)
    transform = token_transform(tokenizer, model.text_model, longest)
    module, fill = _text_encoder(model, transform), {}
    if isinstance(module, SiglipTextEncoder):
        fill = {"padding": "max_length", "max_length": config.max_position_embeddings}
    with torch.no_grad():
        dimensions = module(*transform.example(1, 3)).shape[1]

    def preprocess(text: str, **fill: object) -> dict[str, torch.Tensor]:
        options = {"truncation": True, "max_length": longest, "return_tensors": "pt", **fill}
        return tokenizer([text], **options)

    @torch.no_grad()
    def embed(text: str) -> dict[str, object]:
        features = preprocess(text, **fill)
        if fill:
            # Asked for one length, the library's own example passes no mask.
            features = {"input_ids": features["input_ids"]}
        pooled = model.get_text_features(**features).pooler_output
        return {"embedding": torch.nn.functional.normalize(pooled, dim=-1)[0].tolist()}

    def write_files(package: Path) -> None:
        write_tokenizer(tokenizer, package / "tokenizer.json", transform.max_tokens, preprocess)

    return Candidate(
        module=module,
        inputs=(Column("text", "STRING"),),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"{_name(model)} text embeddings, {dimensions} dimensions",
        activation_bytes=encoder_activation_bytes(config, transform.max_tokens),
        write_files=write_files,
        original=Original(f"{type(model).__name__}.get_text_features", embed),
    )


def _text_encoder(model: transformers.PreTrainedModel, transform: Tokens) -> torch.nn.Module:
    if model.config.model_type == "siglip":
        return SiglipTextEncoder(model, transform.pad_id).eval()
    return ClipTextEncoder(model).eval()


def _name(model: transformers.PreTrainedModel) -> str:
    return type(model).__name__.removesuffix("Model")


def _load(folder: Path) -> transformers.PreTrainedModel:
    config = load_config(folder)
    if config.model_type not in _KINDS:
        raise ExportError(
            f"{folder}: {config.model_type} is not supported; {', '.join(_KINDS)} are (SigLIP 2 with "
            "images of one size says 'siglip', too)"
        )
    return load(folder, _KINDS[config.model_type])
