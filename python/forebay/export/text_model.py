"""What classifiers and taggers of one text share: model, tokenizer, labels, the library's pipeline."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from .candidate import Tokens
from .huggingface import labels_of, load, load_tokenizer, max_tokens, takes_types, write_labels
from .tokenizer import token_transform, write_tokenizer


@dataclass(frozen=True)
class TextModel:
    """A model of transformers that labels one text, or its tokens, and how it is fed."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    transform: Tokens
    labels: list[str]
    takes_types: bool

    @classmethod
    def load(cls, folder: Path, kind: type, tokens: int | None) -> "TextModel":
        """From a folder; `tokens` overrides the limit that it states."""
        model, tokenizer = load(folder, kind), load_tokenizer(folder)
        made_for = getattr(model.config, "max_position_embeddings", None) or 0
        # XLNet says -1: no limit.
        stated = min(tokenizer.model_max_length, made_for if made_for > 0 else 2**62)
        # What the tokenizer, and so the library's pipeline, cuts a text at.
        tokenizer.model_max_length = max_tokens(model, tokenizer, stated, tokens)
        transform = token_transform(tokenizer, model, tokenizer.model_max_length)
        types = takes_types(model, tokenizer("a"))
        return cls(model, tokenizer, transform, labels_of(model.config), types)

    def pipeline(self, task: str, **options: object) -> transformers.Pipeline:
        """The library's own way from a text to what the model says of it."""
        return transformers.pipeline(
            task, model=self.model, tokenizer=self.tokenizer, device="cpu", **options
        )

    def write_files(self, package: Path) -> None:
        """Its tokenizer and the names of its labels."""

        def preprocess(text: str) -> dict[str, torch.Tensor]:
            return self.tokenizer([text], truncation=True, return_tensors="pt")

        file = package / "tokenizer.json"
        write_tokenizer(self.tokenizer, file, self.transform.max_tokens, preprocess)
        write_labels(self.labels, package)
