"""The task `token-classification`: one text → for each token its label, score, start and end.

The tokens are those of transformers' `TokenClassificationPipeline` with
`aggregation_strategy="none"` and `ignore_labels=[]`: special tokens are left out.
"""

from dataclasses import replace
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, Original, encoder_activation_bytes
from .huggingface import token_features
from .text_model import TextModel

# What the pipeline calls the columns.
_KEYS = {"labels": "entity", "scores": "score", "starts": "start", "ends": "end"}


class Tagger(torch.nn.Module):
    """Token ids and offsets in; per token label, score and offsets out, and which tokens count."""

    def __init__(self, text: TextModel) -> None:
        super().__init__()
        self.model = text.model
        self.takes_types = text.takes_types

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_starts: torch.Tensor,
        token_ends: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """All `[rows, tokens]`; starts are -1 for what is no text: special tokens and padding."""
        output = self.model(**token_features(input_ids, attention_mask, self.takes_types))
        score, index = output.logits.softmax(-1).max(dim=-1)
        return index, score, token_starts.int(), token_ends.int(), token_starts >= 0


def token_classification(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a token classifier."""
    text = TextModel.load(folder, transformers.AutoModelForTokenClassification, tokens)
    arguments = (*text.transform.arguments, "token_starts", "token_ends")
    pipeline = text.pipeline("token-classification", ignore_labels=[])

    def tag(one: str) -> dict[str, object]:
        # The pipeline takes no empty text.
        tokens = pipeline(one, aggregation_strategy="none") if one else []
        return {column: [token[key] for token in tokens] for column, key in _KEYS.items()}

    return Candidate(
        module=Tagger(text).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=(
            Column("labels", "STRING[]", labels=LABELS_FILE),
            Column("scores", "FLOAT[]"),
            Column("starts", "INT[]"),
            Column("ends", "INT[]"),
        ),
        transform=replace(text.transform, arguments=arguments),
        description=f"Token classification, {len(text.labels)} labels",
        activation_bytes=encoder_activation_bytes(text.model.config, text.transform.max_tokens),
        write_files=text.write_files,
        original=Original("transformers' pipeline", tag),
    )
