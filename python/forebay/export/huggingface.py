"""What all Hugging Face models share: loading them, their labels, the length of their input."""

import contextlib
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import transformers

from . import trust
from .candidate import LABELS_FILE
from .errors import ExportError
from .traceable import prepare

# No model takes more; tokenizers state 1e30 where there is no limit.
TOKENS_MAX = 1_000_000


@contextlib.contextmanager
def load_errors(folder: Path, library: str) -> Iterator[None]:
    """Turns what a library raises over a folder that it cannot load into an error for the user."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # Whatever the library, and what it reads files with, raises.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            raise ExportError(
                f"{folder}: this model needs code of its own, which comes with it; if you trust its "
                "authors, pass --trust-remote-code"
            ) from error
        # What is said of a file that was cut off, or is something else.
        damaged = "deserializing header" in reason or "PytorchStreamReader" in reason
        remedy = "; a file of weights is damaged: download the model again" if damaged else ""
        raise ExportError(f"{folder}: {library} cannot load this model: {reason}{remedy}") from error


def load(folder: Path, kind: type, **options: object) -> transformers.PreTrainedModel:
    """The model on the CPU in 32-bit floats; `kind` is one of the `AutoModelFor…` classes.

    Weights that the folder lacks would be random ones: that is an error here.
    """
    with load_errors(folder, "transformers"):
        model, info = kind.from_pretrained(
            str(folder),
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            **trust.options(),
            **options,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ExportError(
            f"{folder}: it lacks weights of {type(model).__name__}: {', '.join(missing[:3])}"
        )
    prepare(model)
    return model.float().eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of a model's folder."""
    with load_errors(folder, "transformers"):
        return transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, **trust.options()
        )


def load_config(folder: Path) -> transformers.PretrainedConfig:
    """What a model's folder says of itself."""
    with load_errors(folder, "transformers"):
        return transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, **trust.options()
        )


def takes_types(
    model: transformers.PreTrainedModel, features: Mapping[str, torch.Tensor]
) -> bool:
    """Whether the model gets token types: its tokenizer must make them (`features` are an example),
    and it must take them. Zeros are not the same as none: GPT-2 adds an embedding for each type."""
    return (
        "token_type_ids" in features
        and "token_type_ids" in inspect.signature(model.forward).parameters
    )


def token_features(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, has_types: bool
) -> dict[str, torch.Tensor]:
    """What a model of one text is called with; its token types, if it takes them, are all 0."""
    features = {"input_ids": input_ids, "attention_mask": attention_mask}
    if has_types:
        features["token_type_ids"] = torch.zeros_like(input_ids)
    return features


def max_tokens(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    stated: int | None,
    asked: int | None,
    *,
    pair: bool = False,
) -> int:
    """The longest input with special tokens: what is asked for, else what is stated or fewer if
    positions run out."""
    special = tokenizer.num_special_tokens_to_add(pair)
    least = special + (2 if pair else 1)
    positions = min(_positions(model), TOKENS_MAX)
    if asked is not None:
        if positions == TOKENS_MAX:
            # Without a table of positions: what the model was made for is the limit.
            made_for = getattr(model.config, "max_position_embeddings", None) or 0
            positions = min(max(stated or 0, made_for) or TOKENS_MAX, TOKENS_MAX)
        if not least <= asked <= positions:
            raise ExportError(
                f"--max-tokens {asked}: expected {least} to {positions}; the model takes "
                f"{positions} tokens at the most, and {special} of each input are special tokens"
            )
        return asked
    if stated is None or not least <= min(stated, positions) < TOKENS_MAX:
        raise ExportError("the model states no usable max_seq_length; pass --max-tokens")
    return min(stated, positions)


def _positions(model: transformers.PreTrainedModel) -> int:
    """How many positions the model has embeddings for."""
    limits = [TOKENS_MAX]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and MPNet count positions from padding_idx + 1.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return min(limits)


def labels_of(config: transformers.PretrainedConfig) -> list[str]:
    """The names of the classes, by index."""
    names = {int(index): str(name) for index, name in config.id2label.items()}
    if sorted(names) != list(range(len(names))):
        raise ExportError(
            f"config.json: id2label names the classes {sorted(names)}, expected 0 to "
            f"{len(names) - 1}, each once"
        )
    return [names[index] for index in range(len(names))]


def write_labels(labels: list[str], package: Path) -> None:
    """Writes the names that an output with `labels` refers to."""
    text = json.dumps(labels, ensure_ascii=False, indent=1)
    (package / LABELS_FILE).write_text(f"{text}\n", encoding="utf-8")
