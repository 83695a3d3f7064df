"""Loads a text encoder and makes it one function of token ids.

In: a folder that sentence-transformers can read. Out: an `Encoder`, whose
`forward(input_ids, attention_mask)` is what the package's program will compute. Must not know how
programs are traced or packages are written.
"""

import inspect
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from errors import ExportError
from source import check_stages


class Encoder(torch.nn.Module):
    """All stages of a sentence-transformers model: token ids in, one embedding per row out."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(model)
        parameters = inspect.signature(model[0].auto_model.forward).parameters
        self.wants_token_types = "token_type_ids" in parameters

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.wants_token_types:
            features["token_type_ids"] = torch.zeros_like(input_ids)
        for stage in self.stages:
            features = stage(features)
        return features["sentence_embedding"]


def load_model(folder: Path, tokens: int | None = None) -> SentenceTransformer:
    """The model on the CPU in 32-bit floats; its `max_seq_length` is one it can compute.

    `tokens` overrides the limit that the folder states.
    """
    check_stages(folder)
    try:
        model = SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(
            f"{folder}: sentence-transformers cannot load this model: {reason}"
        ) from error
    model.float().eval().requires_grad_(False)
    first = model[0]
    if (
        getattr(first, "transformer_task", "") != "feature-extraction"
        or "text" not in first.modalities
    ):
        raise ExportError(
            f"{folder}: not a text encoder; only models that embed text can be exported"
        )
    prompt = model.prompts.get(model.default_prompt_name or "", "")
    if prompt:
        raise ExportError(
            f"{folder}: the model puts the prompt {prompt!r} before each text, which a package "
            "cannot express; remove default_prompt_name from config_sentence_transformers.json and "
            "prepend the prompt in SQL"
        )
    model.max_seq_length = _max_tokens(model, tokens)
    return model


def _max_tokens(model: SentenceTransformer, requested: int | None) -> int:
    """The longest input with special tokens: sentence-transformers' limit, or fewer positions."""
    limits = [requested or model.max_seq_length or 0]
    for name, module in model[0].auto_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and MPNet count positions from padding_idx + 1.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    limit = min(limits)
    if not 2 < limit <= 1_000_000:
        raise ExportError("the model states no usable max_seq_length; pass --max-tokens")
    return limit
