"""What every task makes of a source: a module to trace, and what its package says of it.

In between `tasks.py`, which makes candidates, and `program.py` and `package.py`, which know only
them: a new task needs a file that returns a `Candidate`, nothing else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from PIL import Image

LABELS_FILE = "labels.json"
# Types of SQL that a tensor may hold.
KINDS = {
    "FLOAT": torch.float32,
    "DOUBLE": torch.float64,
    "INT": torch.int32,
    "BIGINT": torch.int64,
}
# Pillow's numbers of filters, as preprocessors of images name them.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}


def fields_of(sql_type: str) -> dict[str, str]:
    """The types of a struct's fields by their names, of a list of structs; of other types none."""
    inner = re.fullmatch(r"STRUCT<(.*)>\[\]", sql_type)
    columns = inner.group(1).split(",") if inner else []
    return dict(column.split(maxsplit=1) for column in columns)


@dataclass(frozen=True)
class Column:
    """One `[[input]]` or `[[output]]`; the fields are those of docs/model-packages.md."""

    name: str
    type: str
    labels: str | None = None
    shape: tuple[int, ...] | None = None

    def kind(self) -> torch.dtype:
        """Of numbers and vectors: what the program gets, or gives."""
        return KINDS[self.type.partition("[")[0]]

    def sides(self) -> tuple[int, ...]:
        """Of one row."""
        if self.shape is not None:
            return self.shape
        sides = self.type.partition("[")[2].rstrip("]")
        return (int(sides),) if sides else ()

    def results(self) -> tuple[str, ...]:
        """The names of the program's results for an output: one, or one for each field of a list of structs."""
        fields = fields_of(self.type)
        return tuple(f"{self.name}_{field}" for field in fields) if fields else (self.name,)


@dataclass(frozen=True)
class Tokens:
    """The transform `tokenize`: text → the named arguments, each `[rows, longest]`."""

    max_tokens: int
    pad_id: int
    vocabulary: int
    arguments: tuple[str, ...] = ("input_ids", "attention_mask")
    # Why padding may disturb the rows of a batch, for the message if it does.
    padding_doubt: str = ""
    # How many tokens the model has embeddings for, where that is more than the tokenizer has.
    embeddings: int | None = None
    # How two texts become one, with the names of the inputs in braces; None if they stay two.
    template: str | None = None

    def with_template(self, template: str) -> "Tokens":
        """The same of one text that is made of two."""
        return replace(self, template=template)

    def example(self, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        """Seeded random ids; the first row is full, the others shorter and padded."""
        generator = torch.Generator().manual_seed(rows * 10_007 + length)
        ids = torch.randint(0, self.vocabulary, (rows, length), generator=generator)
        ids[ids == self.pad_id] = (self.pad_id + 1) % self.vocabulary
        mask, types = torch.ones_like(ids), torch.zeros_like(ids)
        starts = torch.arange(length).expand(rows, length).clone()
        starts[:, 0] = -1
        for row in range(rows):
            used = length
            if row > 0:
                used = int(torch.randint(2, length + 1, (1,), generator=generator))
            types[row, int(torch.randint(1, used, (1,), generator=generator)) : used] = 1
            ids[row, used:] = self.pad_id
            mask[row, used:] = 0
            starts[row, used - 1 :] = -1
        ends = torch.where(starts < 0, starts, starts + 1)
        # Words of two tokens.
        texts, words = torch.where(starts < 0, starts, types), torch.where(starts < 0, starts, starts // 2)
        made = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": types,
            "token_starts": starts,
            "token_ends": ends,
            "token_texts": texts,
            "token_words": words,
        }
        return tuple(made[name] for name in self.arguments)

    def lengths(self) -> list[int]:
        """The lengths at which a program is compared with its model."""
        longest = self.max_tokens
        return sorted({3, 4, min(37, longest), longest // 2 + 1, longest})

    def last_alone(self, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The last row without its padding."""
        used = int(arguments[self.arguments.index("attention_mask")][-1].sum())
        return tuple(argument[-1:, :used] for argument in arguments)


@dataclass(frozen=True)
class Tensors:
    """The transform `tensor`: one `FLOAT[n]` column → `[rows, *shape]`."""

    shape: tuple[int, ...]
    padding_doubt = ""

    def example(self, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        """Seeded random values; `length` does not count, shapes are fixed."""
        generator = torch.Generator().manual_seed(rows * 10_007 + length)
        return (torch.randn((rows, *self.shape), generator=generator),)

    def lengths(self) -> list[int]:
        """One: the shape is fixed."""
        return [1]

    def last_alone(self, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The last row."""
        return tuple(argument[-1:] for argument in arguments)


@dataclass(frozen=True)
class Values:
    """The transform `tensor` of any number of columns: `[rows]` of a number, `[rows, …]` of a vector."""

    columns: tuple[Column, ...]
    padding_doubt = ""

    def example(self, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        """Seeded random values; `length` does not count, shapes are fixed."""
        generator = torch.Generator().manual_seed(rows * 10_007 + length)

        def values(column: Column) -> torch.Tensor:
            kind, shape = column.kind(), (rows, *column.sides())
            if kind.is_floating_point:
                return torch.randn(shape, generator=generator, dtype=kind)
            # Most programs look something up by whole numbers.
            return torch.randint(0, 2, shape, generator=generator, dtype=kind)

        return tuple(values(column) for column in self.columns)

    def lengths(self) -> list[int]:
        """One: shapes are fixed."""
        return [1]

    def last_alone(self, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The last row."""
        return tuple(argument[-1:] for argument in arguments)


@dataclass(frozen=True)
class Images(Tensors):
    """The transform `image`: one `BINARY` column of image files → `[rows, 3, crop, crop]`."""

    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filter: str = "bilinear"
    # Which sides become `resize` pixels: the "shorter", or "both".
    fit: str = "shorter"
    # Where the middle begins if an odd number of pixels is cut off: "rounded" to an even half, as torchvision
    # does, or "floored", as transformers does.
    middle: str = "rounded"
    # What the model's own processor makes of images, `[3, crop, crop]` each; None where there is none.
    processor: Callable[[list[Image.Image]], torch.Tensor] | None = field(default=None, compare=False)


Transform = Tokens | Tensors | Values


@dataclass(frozen=True)
class Original:
    """The call of a model's own library, which the package must agree with."""

    # As messages name it.
    name: str
    # One row's texts, or its tensors → its outputs, by name; computed alone, as no padding can disturb
    # it. Of a model with prompts it takes `prompt`, the name of one.
    call: Callable[..., dict[str, object]]


@dataclass(frozen=True)
class Candidate:
    """A model of any task on its way to a package."""

    # `forward(*arguments)` returns a tensor or a tuple of them, in the order of `outputs`.
    module: torch.nn.Module
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    transform: Transform
    description: str
    # Bytes that a batch of so many tokens (rows, for tensors) needs at the widest layer.
    activation_bytes: Callable[[int], int]
    # Writes the files that the transform and the outputs need into a folder.
    write_files: Callable[[Path], None] = field(default=lambda folder: None)
    # None where the model has no library that could be called.
    original: Original | None = None
    # Texts that may be put in front of the (first) input, by name, and the one that is by default.
    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str | None = None


def encoder_activation_bytes(config: object, max_tokens: int) -> Callable[[int], int]:
    """The estimate for a transformer encoder over batches of tokens."""
    hidden = config.hidden_size
    heads = getattr(config, "num_attention_heads", 1)
    # Per token: about 8 vectors of the hidden size, 2 of the inner size (4 x hidden), and two rows
    # of attention scores per head.
    return lambda tokens: 4 * tokens * (16 * hidden + 2 * heads * max_tokens)
