"""The task `rerank`: two texts → the score of sentence-transformers' `CrossEncoder.predict`."""

from dataclasses import replace
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder

from . import trust
from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .classifier import best_of, label_columns
from .encoder import prompts_of
from .errors import ExportError
from .huggingface import labels_of, load_errors, max_tokens, takes_types, write_labels
from .tokenizer import token_transform, write_pair_tokenizer
from .traceable import prepare


# The modules that a model may be of, and what the first of them is for.
_SUPPORTED = (
    (["Transformer"], "sequence-classification"),
    (["Transformer", "LogitScore"], "text-generation"),
)


class Reranker(torch.nn.Module):
    """Token ids of pairs in, the model's own activation of its logits out."""

    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.stage = model[0]
        # The model itself keeps it out of its modules.
        self.activation = model.activation_fn

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Scores `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            features["token_type_ids"] = token_type_ids
        scores = self.activation(self.stage(features)["scores"])
        return scores.squeeze(1) if scores.shape[1] == 1 else best_of(scores)


def rerank(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a cross-encoder; one of several labels also gives their names."""
    model = load_model(folder, tokens)
    if len(model) > 1:
        from .logit_score import by_logits

        return by_logits(folder, model)
    config = model[0].auto_model.config
    labels = labels_of(config)

    def write_files(package: Path) -> None:
        write_pair_tokenizer(
            model.tokenizer,
            package / "tokenizer.json",
            model.max_seq_length,
            has_types,
            lambda pair: model.preprocess([list(pair)]),
        )
        if len(labels) > 1:
            write_labels(labels, package)

    def predict(query: str, passage: str, prompt: str | None = None) -> dict[str, object]:
        scores = model.predict([(query, passage)], prompt_name=prompt)[0]
        if len(labels) == 1:
            return {"score": float(scores)}
        best = int(scores.argmax())
        return {"label": labels[best], "score": float(scores[best]), "scores": scores.tolist()}

    has_types = takes_types(model[0].auto_model, model.preprocess([["a", "b"]]))
    transform = token_transform(model.tokenizer, model[0].auto_model, model.max_seq_length)
    arguments = (*transform.arguments, *("token_type_ids",) * has_types)
    outputs = (Column("score", "FLOAT"),) if len(labels) == 1 else label_columns(len(labels))
    return Candidate(
        module=Reranker(model).eval(),
        inputs=(Column("query", "STRING"), Column("passage", "STRING")),
        outputs=outputs,
        transform=replace(transform, arguments=arguments),
        description="Relevance of a passage to a query"
        if len(labels) == 1
        else f"Classification of two texts, {len(labels)} labels",
        activation_bytes=encoder_activation_bytes(config, transform.max_tokens),
        write_files=write_files,
        original=Original("CrossEncoder.predict", predict),
        **prompts_of(folder, model),
    )


def load_model(folder: Path, tokens: int | None = None) -> CrossEncoder:
    """The model on the CPU in 32-bit floats; its `max_seq_length` is one it can compute."""
    with load_errors(folder, "sentence-transformers"):
        model = CrossEncoder(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
            **trust.options(),
        )
    model.float().eval().requires_grad_(False)
    prepare(model)
    stages = [type(stage).__name__ for stage in model]
    task = getattr(model[0], "transformer_task", "")
    if (stages, task) not in _SUPPORTED:
        raise ExportError(
            f"{folder}: a re-ranker of the stages {', '.join(stages)} ({task}) is not supported; "
            "those with a sequence classification head are, and decoders with a LogitScore"
        )
    model.max_seq_length = max_tokens(
        model[0].auto_model, model.tokenizer, model.max_seq_length, tokens, pair=True
    )
    return model
