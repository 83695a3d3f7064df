"""The task `classification`: one text → the best label, its score, and the scores of all labels.

The scores are those of transformers' `TextClassificationPipeline`.
"""

import inspect
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, Tokens, encoder_activation_bytes
from .huggingface import labels_of, load, load_tokenizer, max_tokens, write_labels
from .tokenizer import pad_id, write_tokenizer


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

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.scores = Scores(model.config)
        self.wants_token_types = "token_type_ids" in inspect.signature(model.forward).parameters

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Classifies `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        types = {"token_type_ids": torch.zeros_like(input_ids)} if self.wants_token_types else {}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        return best_of(self.scores(output.logits))


def labelled_text_transform(
    folder: Path, model: transformers.PreTrainedModel, tokens: int | None
) -> tuple:
    """As `text_transform`, for a model whose package also lists its labels."""
    transform, write_text_files = text_transform(folder, model, tokens)

    def write_files(package: Path) -> None:
        write_text_files(package)
        write_labels(labels_of(model.config), package)

    return transform, write_files


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
    model = load(folder, transformers.AutoModelForSequenceClassification)
    labels = labels_of(model.config)
    transform, write_files = labelled_text_transform(folder, model, tokens)
    return Candidate(
        module=Classifier(model).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=label_columns(len(labels)),
        transform=transform,
        description=f"Text classification, {len(labels)} labels",
        activation_bytes=encoder_activation_bytes(model.config, transform.max_tokens),
        write_files=write_files,
    )


def text_transform(folder: Path, model: transformers.PreTrainedModel, tokens: int | None) -> tuple:
    """How a model of one text from a Hugging Face folder is fed, and what writes its tokenizer."""
    tokenizer = load_tokenizer(folder)
    stated = tokens or min(
        tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 2**62)
    )
    limit = max_tokens(model, stated)
    transform = Tokens(limit, pad_id(tokenizer), min(len(tokenizer), model.config.vocab_size))

    def preprocess(text: str) -> dict[str, torch.Tensor]:
        return tokenizer([text], truncation=True, max_length=limit, return_tensors="pt")

    def write_files(package: Path) -> None:
        write_tokenizer(tokenizer, package / "tokenizer.json", limit, preprocess)

    return transform, write_files
