"""Writes the `tokenizer.json` of a package and proves that it gives the model's own token ids."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from errors import ExportError

PROBES = (
    "",
    " ",
    "a",
    "  Two  spaces,\ttabs\nand lines.  ",
    "Größe naïve ÅNGSTRÖM İstanbul",
    "日本語のテキスト、emoji 👩‍🚀 and e\u0301 combining",
    "mixed CASE and [MASK] </s> <pad> tokens",
    "1,234.56 € — “quoted” … don't",
    "a long text of many words " * 400,
    "unbroken" * 300,
)


def pad_id(model: SentenceTransformer) -> int:
    """The id that fills a batch, provided that the model pads at the end."""
    tokenizer = model.tokenizer
    if tokenizer.pad_token_id is None:
        raise ExportError(
            "the tokenizer has no padding token; set pad_token in tokenizer_config.json"
        )
    if tokenizer.padding_side != "right":
        raise ExportError(
            "the tokenizer pads on the left; only models that pad on the right can be exported"
        )
    return tokenizer.pad_token_id


def write_tokenizer(model: SentenceTransformer, path: Path) -> None:
    """Writes the tokenizer as the model uses it (lower-casing too), without truncation and padding."""
    if not model.tokenizer.is_fast:
        raise ExportError(
            "the tokenizer has no tokenizers (Rust) form; convert it to a fast tokenizer first"
        )
    tokenizer = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(path))
    _check_tokenizer(model, path)


def _check_tokenizer(model: SentenceTransformer, path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(model.max_seq_length)
    for text in PROBES:
        features = model.preprocess([text])
        expected = features["input_ids"][0].tolist()
        found = tokenizer.encode(text).ids
        if found != expected:
            raise ExportError(
                f"tokenizer.json gives other token ids than the model for {text[:40]!r}: "
                f"{found[:12]} instead of {expected[:12]}"
            )
        if "token_type_ids" in features and features["token_type_ids"].any():
            raise ExportError(
                "the tokenizer gives token types other than 0, which a package cannot express"
            )
