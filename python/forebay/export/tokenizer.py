"""Writes the `tokenizer.json` of a package and proves that it gives the model's own token ids."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import PostProcessor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .candidate import Tokens
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


def token_transform(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_tokens: int
) -> Tokens:
    """How texts are fed to the model, provided that its tokenizer fits it."""
    vocabulary = tokenizer.get_vocab()
    words = vocabulary.keys() - set(tokenizer.all_special_tokens)
    if not any(character.isalnum() for word in words for character in word):
        files = ", ".join({"tokenizer.json", *type(tokenizer).vocab_files_names.values()})
        raise ExportError(
            f"the tokenizer knows no words, so every text would be the same to the model; a folder "
            f"with one of these files is expected: {files}"
        )
    rows = _embeddings(model)
    beyond = sorted((index, token) for token, index in vocabulary.items() if index >= rows)
    beyond = [(index, token) for index, token in beyond if token != tokenizer.pad_token]
    if beyond:
        index, token = beyond[0]
        raise ExportError(
            f"the tokenizer has {len(beyond)} tokens that the model has no embedding for: from "
            f"{token!r} ({index}) on, and the model has {rows}; take the tokenizer that the model "
            "was trained with, or resize the model's embeddings"
        )
    pad_id, stated, doubt = _pad_id(tokenizer, rows), model.config.pad_token_id, ""
    if stated not in (None, pad_id):
        # Most models never look at it; some find the last token of a text by it.
        doubt = (
            f"; config.json takes token {stated} for padding (pad_token_id), and the tokenizer fills "
            f"batches with {tokenizer.pad_token!r} ({pad_id}): make them agree"
        )
    vocabulary_size = min(len(vocabulary), rows)
    return Tokens(max_tokens, pad_id, vocabulary_size, padding_doubt=doubt, embeddings=rows)


def _embeddings(model: PreTrainedModel) -> int:
    """How many tokens the model knows."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (NotImplementedError, AttributeError) as error:
        raise ExportError(
            f"{type(model).__name__} has no table of token embeddings, as models of characters and of "
            "bytes have none; models of tokens can be exported"
        ) from error


def _pad_id(tokenizer: PreTrainedTokenizerBase, rows: int) -> int:
    """The id that fills a batch. Packages are padded at the end, whatever side the tokenizer pads: the
    checks tell whether the model minds."""
    if tokenizer.pad_token_id is None:
        raise ExportError(
            "the tokenizer has no padding token; set pad_token in tokenizer_config.json"
        )
    if not 0 <= tokenizer.pad_token_id < rows:
        raise ExportError(
            f"the tokenizer fills batches with {tokenizer.pad_token!r} ({tokenizer.pad_token_id}), "
            f"and the model has embeddings for {rows} tokens; set pad_token in tokenizer_config.json "
            "to a token that the model knows"
        )
    return tokenizer.pad_token_id


def write_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    max_tokens: int,
    preprocess: Preprocess,
    probes: Sequence[str] = PROBES,
    around: PostProcessor | None = None,
) -> None:
    """Writes the tokenizer as the model uses it (lower-casing too), without truncation and padding.

    `preprocess` is what the result is checked against, for single texts; `around` is what puts tokens around
    them, if not the tokenizer itself.
    """
    written = _write(tokenizer, path, max_tokens, around)
    for text in probes:
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


def _write(
    tokenizer: PreTrainedTokenizerBase, path: Path, max_tokens: int, around: PostProcessor | None = None
) -> Tokenizer:
    """Writes the file, and reads it as a package's reader does."""
    if not tokenizer.is_fast:
        raise ExportError(
            "the tokenizer has no tokenizers (Rust) form; convert it to a fast tokenizer first"
        )
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if around is not None:
        plain.post_processor = around
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
