"""The task `sparse-embedding`: one text → the tokens of the vocabulary that it is about, with weights.

They are those of sentence-transformers' `SparseEncoder.encode` (SPLADE), named as its `decode` names them, in
the vocabulary's order, which rounding cannot change.
"""

import json
from pathlib import Path

import torch
from sentence_transformers import SparseEncoder

from . import trust
from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .encoder import prompts_of
from .errors import ExportError
from .huggingface import load_errors, max_tokens, takes_types, token_features
from .tokenizer import token_transform, write_tokenizer
from .traceable import prepare

TOKENS_FILE = "tokens.json"


class Sparse(torch.nn.Module):
    """Token ids in; ids of the vocabulary, their weights, and which of them count."""

    def __init__(self, model: SparseEncoder) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(model)
        self.takes_types = takes_types(model[0].auto_model, model.preprocess(["a"]))
        self.most = model.max_active_dims

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        features = token_features(input_ids, attention_mask, self.takes_types)
        for stage in self.stages:
            features = stage(features)
        weights = features["sentence_embedding"]
        kept = weights > 0
        if self.most is not None:
            kept = kept & (weights >= weights.topk(self.most, dim=1).values[:, -1:])
        tokens = torch.arange(weights.shape[1], device=weights.device).expand_as(weights)
        return tokens, weights, kept


def sparse_embedding(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a sparse encoder; `tokens` overrides the limit that the folder states."""
    model = _load(folder, tokens)
    transform = token_transform(model.tokenizer, model[0].auto_model, model.max_seq_length)
    module = Sparse(model).eval()
    with torch.no_grad():
        size = module(*transform.example(1, 3))[0].shape[1]
    names = model.tokenizer.convert_ids_to_tokens(range(size))
    # Models may have more rows than their tokenizers tokens.
    names = [f"[{index}]" if name is None else name for index, name in enumerate(names)]

    def write_files(package: Path) -> None:
        file = package / "tokenizer.json"
        write_tokenizer(
            model.tokenizer, file, transform.max_tokens, lambda text: model.preprocess([text])
        )
        text = json.dumps(names, ensure_ascii=False)
        (package / TOKENS_FILE).write_text(f"{text}\n", encoding="utf-8")

    def encode(text: str, prompt: str | None = None) -> dict[str, object]:
        weights = model.encode([text], prompt_name=prompt, convert_to_sparse_tensor=False)[0]
        held = weights.nonzero().flatten().tolist()
        pairs = zip(held, weights[held].tolist(), strict=True)
        return {"embedding": [{"token": names[index], "weight": weight} for index, weight in pairs]}

    encoder_bytes = encoder_activation_bytes(model[0].auto_model.config, transform.max_tokens)
    return Candidate(
        module=module,
        inputs=(Column("text", "STRING"),),
        outputs=(Column("embedding", "STRUCT<token STRING, weight FLOAT>[]", labels=TOKENS_FILE),),
        transform=transform,
        description=f"Sparse embeddings over {size} tokens",
        # The logits of all tokens of the vocabulary, for each token of a text.
        activation_bytes=lambda tokens: encoder_bytes(tokens) + 3 * 4 * tokens * size,
        write_files=write_files,
        original=Original("SparseEncoder.encode", encode),
        **prompts_of(folder, model),
    )


def _load(folder: Path, tokens: int | None) -> SparseEncoder:
    with load_errors(folder, "sentence-transformers"):
        model = SparseEncoder(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
            **trust.options(),
        )
    model.float().eval().requires_grad_(False)
    stages = [type(stage).__name__ for stage in model]
    if stages not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise ExportError(
            f"{folder}: a sparse encoder of the stages {', '.join(stages)} is not supported; those of a "
            "Transformer and SpladePooling are"
        )
    prepare(model)
    first = model[0]
    model.max_seq_length = max_tokens(
        first.auto_model, model.tokenizer, model.max_seq_length, tokens
    )
    return model
