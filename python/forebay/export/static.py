"""Static embeddings of sentence-transformers: a vector for each token, and their mean, without attention."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, processors

from .candidate import Candidate, Column, Original, Tokens
from .errors import ExportError
from .tokenizer import PROBES

# These models take texts of any length, and a package needs an end: what other models take at the most.
MAX_TOKENS = 8192


class StaticEncoder(torch.nn.Module):
    """Token ids in, one embedding per row out."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(model[0].embedding.weight.detach().float(), requires_grad=False)
        self.stages = torch.nn.ModuleList(list(model)[1:])
        self.dimensions = model.truncate_dim

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds `[rows, tokens]` ids; positions whose mask is 0 have no influence."""
        mask = attention_mask.to(self.weight.dtype).unsqueeze(-1)
        vectors = torch.nn.functional.embedding(input_ids, self.weight) * mask
        features = {"sentence_embedding": vectors.sum(1) / mask.sum(1)}
        for stage in self.stages:
            features = stage(features)
        embedding = features["sentence_embedding"]
        return embedding if self.dimensions is None else embedding[:, : self.dimensions]


def static_embedding(
    model: SentenceTransformer, tokens: int | None, prompts: dict[str, object]
) -> Candidate:
    """The candidate of a model whose first stage is `StaticEmbedding`."""
    tokenizer = _tokenizer(model)
    truncation = model[0].tokenizer.truncation
    longest = truncation["max_length"] if truncation else MAX_TOKENS
    if tokens is not None:
        longest = min(longest, tokens) if truncation else tokens
    if longest < 1:
        raise ExportError(f"--max-tokens {tokens}: expected 1 or more")
    rows = model[0].embedding.num_embeddings
    if tokenizer.get_vocab_size() > rows:
        raise ExportError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, and the model vectors for {rows}; take "
            "the tokenizer that the model was made with"
        )
    module, transform = StaticEncoder(model).eval(), Tokens(longest, 0, rows)
    with torch.no_grad():
        dimensions = module(*transform.example(1, 3)).shape[1]

    def write_files(package: Path) -> None:
        tokenizer.save(str(package / "tokenizer.json"))

    def encode(text: str, prompt: str | None = None) -> dict[str, object]:
        return {"embedding": model.encode([text], prompt_name=prompt)[0].tolist()}

    width = module.weight.shape[1]
    return Candidate(
        module=module,
        inputs=(Column("text", "STRING"),),
        outputs=(Column("embedding", f"FLOAT[{dimensions}]"),),
        transform=transform,
        description=f"Static sentence embeddings, {dimensions} dimensions",
        activation_bytes=lambda tokens: 4 * tokens * 3 * width,
        write_files=write_files,
        original=Original("SentenceTransformer.encode", encode),
        **prompts,
    )


def _tokenizer(model: SentenceTransformer) -> Tokenizer:
    """The model's, which adds no special tokens, in a form that adds none for anybody."""
    own = model[0].tokenizer
    plain = Tokenizer.from_str(own.to_str())
    plain.no_truncation()
    plain.no_padding()
    plain.post_processor = processors.Sequence([])
    for text in PROBES[:-2]:
        found, expected = plain.encode(text).ids, own.encode(text, add_special_tokens=False).ids
        if found != expected:
            raise ExportError(
                f"tokenizer.json gives other token ids than the model for {text[:20]!r}: {found[:12]} "
                f"instead of {expected[:12]}"
            )
    return plain
