"""The task `token-classification`: one text → for each token its label, score, start and end.

The tokens are those of transformers' `TokenClassificationPipeline` with
`aggregation_strategy="none"` and `ignore_labels=[]`: special tokens are left out.
"""

import inspect
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, encoder_activation_bytes
from .classifier import labelled_text_transform
from .huggingface import labels_of, load


class Tagger(torch.nn.Module):
    """Token ids and offsets in; per token label, score and offsets out, and which tokens count."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.wants_token_types = "token_type_ids" in parameters

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_starts: torch.Tensor,
        token_ends: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """All `[rows, tokens]`; starts are -1 for what is no text: special tokens and padding."""
        types = {"token_type_ids": torch.zeros_like(input_ids)} if self.wants_token_types else {}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        score, index = output.logits.softmax(-1).max(dim=-1)
        return index, score, token_starts.int(), token_ends.int(), token_starts >= 0


def token_classification(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a token classifier."""
    model = load(folder, transformers.AutoModelForTokenClassification)
    labels = labels_of(model.config)
    transform, write_files = labelled_text_transform(folder, model, tokens)
    return Candidate(
        module=Tagger(model).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=(
            Column("labels", "STRING[]", labels=LABELS_FILE),
            Column("scores", "FLOAT[]"),
            Column("starts", "INT[]"),
            Column("ends", "INT[]"),
        ),
        transform=replace(
            transform, arguments=(*transform.arguments, "token_starts", "token_ends")
        ),
        description=f"Token classification, {len(labels)} labels",
        activation_bytes=encoder_activation_bytes(model.config, transform.max_tokens),
        write_files=write_files,
    )
