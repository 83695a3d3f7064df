"""The task `embedding`: one text → one vector, by all stages of a sentence-transformers model."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from . import trust
from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .errors import ExportError
from .huggingface import load_errors, max_tokens, takes_types, token_features
from .source import check_stages
from .tokenizer import token_transform, write_tokenizer
from .traceable import prepare


class Encoder(torch.nn.Module):
    """All stages of a sentence-transformers model: token ids in, one embedding per row out."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(model)
        self.takes_types = takes_types(model[0].auto_model, model.preprocess(["a"]))
        self.dimensions = model.truncate_dim

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        features = token_features(input_ids, attention_mask, self.takes_types)
        for stage in self.stages:
            features = stage(features)
        embedding = features["sentence_embedding"]
        # The model's own limit comes last, so what is cut is not normalized again.
        return embedding if self.dimensions is None else embedding[:, : self.dimensions]


def embedding(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of an encoder; `tokens` overrides the limit that the folder states."""
    model = load_model(folder, tokens)
    if isinstance(model[0], StaticEmbedding):
        from .static import static_embedding

        return static_embedding(model, tokens, prompts_of(folder, model))
    config = model[0].auto_model.config
    transform = token_transform(model.tokenizer, model[0].auto_model, model.max_seq_length)
    module = Encoder(model).eval()
    with torch.no_grad():
        dimensions = module(*transform.example(1, 3)).shape[1]

    def write_files(package: Path) -> None:
        write_tokenizer(
            model.tokenizer,
            package / "tokenizer.json",
            transform.max_tokens,
            lambda text: model.preprocess([text]),
        )

    def encode(text: str, prompt: str | None = None) -> dict[str, object]:
        return {"embedding": model.encode([text], prompt_name=prompt)[0].tolist()}

    return Candidate(
        module=module,
        inputs=(Column("text", "STRING"),),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"Sentence embeddings, {dimensions} dimensions",
        activation_bytes=encoder_activation_bytes(config, transform.max_tokens),
        write_files=write_files,
        original=Original("SentenceTransformer.encode", encode),
        **prompts_of(folder, model),
    )


def load_model(folder: Path, tokens: int | None = None) -> SentenceTransformer:
    """The model on the CPU in 32-bit floats; its `max_seq_length` is one it can compute.

    `tokens` overrides the limit that the folder states.
    """
    check_stages(folder)
    with load_errors(folder, "sentence-transformers"):
        model = SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
            **trust.options(),
        )
    model.float().eval().requires_grad_(False)
    prepare(model)
    first = model[0]
    if isinstance(first, StaticEmbedding):
        return model
    if (
        getattr(first, "transformer_task", "") != "feature-extraction"
        or "text" not in first.modalities
    ):
        raise ExportError(
            f"{folder}: not a text encoder; only models that embed text can be exported"
        )
    model.max_seq_length = max_tokens(
        first.auto_model, model.tokenizer, model.max_seq_length, tokens
    )
    return model


def prompts_of(folder: Path, model: torch.nn.Module) -> dict[str, object]:
    """The fields `prompts` and `prompt` of a candidate: what a model of sentence-transformers can put in
    front of its texts, and what it does by itself."""
    # Every model has names for queries and documents; those of most stand for nothing.
    if not any(model.prompts.values()):
        return {}
    if any(not getattr(stage, "include_prompt", True) for stage in model):
        raise ExportError(
            f"{folder}: the model leaves the tokens of its prompts out of its pooling, which a package "
            "cannot express; set include_prompt to true in the configuration of its pooling if that is "
            "meant"
        )
    return {"prompts": dict(model.prompts), "prompt": model.default_prompt_name}
