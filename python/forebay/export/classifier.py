"""The task `classification`: one text → the best label, its score, and the scores of all labels.

The scores are those of transformers' `TextClassificationPipeline`.
"""

from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, Original, encoder_activation_bytes
from .huggingface import token_features
from .text_model import TextModel


class Scores(torch.nn.Module):
    """Logits → scores, as the model's configuration wants them."""

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__()
        problem = config.problem_type
        if problem == "regression":
            self.function = "none"
        elif problem == "multi_label_classification" or config.num_labels == 1:
            self.function = "sigmoid"
        else:
            self.function = "softmax"

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        if self.function == "none":
            return logits
        return logits.sigmoid() if self.function == "sigmoid" else logits.softmax(-1)


class Classifier(torch.nn.Module):
    """Token ids in; the best class's index, its score, and if there are several, all scores."""

    def __init__(self, text: TextModel) -> None:
        super().__init__()
        self.model = text.model
        self.scores = Scores(text.model.config)
        self.takes_types = text.takes_types

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Classifies `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        output = self.model(**token_features(input_ids, attention_mask, self.takes_types))
        return best_of(self.scores(output.logits))


def best_of(scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`[rows, classes]` scores → what `label_columns` declares."""
    best, index = scores.max(dim=1)
    return (index, best, scores) if scores.shape[1] > 1 else (index, best)


def label_columns(count: int) -> tuple[Column, ...]:
    """The outputs of every model that chooses among `count` labels."""
    columns = (Column("label", "STRING", labels=LABELS_FILE), Column("score", "FLOAT"))
    return (*columns, Column("scores", f"FLOAT[{count}]")) if count > 1 else columns


def classification(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a sequence classifier."""
    text = TextModel.load(folder, transformers.AutoModelForSequenceClassification, tokens)
    pipeline = text.pipeline("text-classification")

    def classify(one: str) -> dict[str, object]:
        [ranked] = pipeline([one], top_k=None, truncation=True)
        found = {"label": ranked[0]["label"], "score": ranked[0]["score"]}
        scores = {entry["label"]: entry["score"] for entry in ranked}
        # Classes of the same name cannot be told apart in what the pipeline gives.
        if len(scores) == len(text.labels) > 1:
            found["scores"] = [scores[label] for label in text.labels]
        return found

    return Candidate(
        module=Classifier(text).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=label_columns(len(text.labels)),
        transform=text.transform,
        description=f"Text classification, {len(text.labels)} labels",
        activation_bytes=encoder_activation_bytes(text.model.config, text.transform.max_tokens),
        write_files=text.write_files,
        original=Original("transformers' pipeline", classify),
    )
