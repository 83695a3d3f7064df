"""What all Hugging Face models share: loading them, their labels, the length of their input."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE
from .errors import ExportError


@contextlib.contextmanager
def load_errors(folder: Path, library: str) -> Iterator[None]:
    """Turns what a library raises over a folder that it cannot load into an error for the user."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"{folder}: {library} cannot load this model: {reason}") from error


def load(folder: Path, kind: type) -> transformers.PreTrainedModel:
    """The model on the CPU in 32-bit floats; `kind` is one of the `AutoModelFor…` classes.

    Weights that the folder lacks would be random ones: that is an error here.
    """
    with load_errors(folder, "transformers"):
        model, info = kind.from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ExportError(
            f"{folder}: it lacks weights of {type(model).__name__}: {', '.join(missing[:3])}"
        )
    return model.float().eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of a model's folder."""
    with load_errors(folder, "transformers"):
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def max_tokens(model: transformers.PreTrainedModel, stated: int | None) -> int:
    """The longest input with special tokens: what is stated, or fewer if positions run out."""
    limits = [stated or 0]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and MPNet count positions from padding_idx + 1.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    limit = min(limits)
    if not 2 < limit <= 1_000_000:
        raise ExportError("the model states no usable max_seq_length; pass --max-tokens")
    return limit


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
