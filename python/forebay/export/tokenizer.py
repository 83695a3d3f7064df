"""Writes the `tokenizer.json` of a package and proves that it gives the model's own token ids."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from .errors import ExportError

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
# Each text with the one behind it: short and long on either side, and both long.
PROBE_PAIRS = tuple(zip(PROBES, (*PROBES[1:], PROBES[-2]), strict=True))

# What the model makes of one text, or of a pair: the ids, and the token types if it takes them.
Preprocess = Callable[[str | tuple[str, str]], Mapping[str, torch.Tensor]]


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills a batch, provided that the model pads at the end."""
    if tokenizer.pad_token_id is None:
        raise ExportError(
            "the tokenizer has no padding token; set pad_token in tokenizer_config.json"
        )
    if tokenizer.padding_side != "right":
        raise ExportError(
            "the tokenizer pads on the left; only models that pad on the right can be exported"
        )
    return tokenizer.pad_token_id


def write_tokenizer(
    tokenizer: PreTrainedTokenizerBase, path: Path, max_tokens: int, preprocess: Preprocess
) -> None:
    """Writes the tokenizer as the model uses it (lower-casing too), without truncation and padding.

    `preprocess` is what the result is checked against, for single texts.
    """
    written = _write(tokenizer, path, max_tokens)
    for text in PROBES:
        _, types = _check(written, text, preprocess)
        if types is not None and any(types):
            raise ExportError(
                "the tokenizer gives token types other than 0, which a package of a model of one "
                "text cannot express"
            )


def write_pair_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    max_tokens: int,
    takes_types: bool,
    preprocess: Preprocess,
) -> None:
    """The same for a model of two texts, and for their token types if it takes them."""
    written = _write(tokenizer, path, max_tokens)
    for pair in PROBE_PAIRS:
        found, expected = _check(written, pair, preprocess)
        if takes_types and found != expected:
            raise ExportError(
                f"tokenizer.json gives other token types than the model for "
                f"{[text[:20] for text in pair]!r}: {found[:12]} instead of {expected[:12]}"
            )


def _write(tokenizer: PreTrainedTokenizerBase, path: Path, max_tokens: int) -> Tokenizer:
    """Writes the file, and reads it as a package's reader does."""
    if not tokenizer.is_fast:
        raise ExportError(
            "the tokenizer has no tokenizers (Rust) form; convert it to a fast tokenizer first"
        )
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    plain.save(str(path))
    written = Tokenizer.from_file(str(path))
    written.enable_truncation(max_tokens)
    return written


def _check(
    tokenizer: Tokenizer, text: str | tuple[str, str], preprocess: Preprocess
) -> tuple[list[int], list[int] | None]:
    """Compares the ids of one probe; returns the token types found and expected."""
    texts = (text,) if isinstance(text, str) else text
    features = preprocess(text)
    expected = features["input_ids"][0].tolist()
    encoding = tokenizer.encode(*texts)
    if encoding.ids != expected:
        shown = [part[:20] for part in texts]
        raise ExportError(
            f"tokenizer.json gives other token ids than the model for {shown!r}: "
            f"{encoding.ids[:12]} instead of {expected[:12]}"
        )
    types = features.get("token_type_ids")
    return encoding.type_ids, None if types is None else types[0].tolist()
