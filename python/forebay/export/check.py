"""Compares a finished package, read as its readers read it, with the call of the model's own library.

`program.py` proves that the trace computes what the exporter's module does. This proves that they are
what the model's users get: with the tokenizer, token types, padding and whatever else the library does.
"""

import io
import tomllib
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer

from .candidate import Candidate, Images, Original, Tokens, Transform
from .errors import ExportError
from .program import TOLERANCE, relative_difference
from .reader import Columns, pixels, run, run_tensors
from .texts import MIXED, PAIRS

# Each text alone, and with others beside it that are shorter and longer.
BATCHES = (1, 5, len(MIXED))
# Fewer of images and sound, of which each is as large as the others.
TENSOR_BATCHES = (1, 2, 5)
# Of 255, by which libraries that resize images may differ: one of rounding, one of a step in between.
STEPS = 2.0


def check_package(package: Path, candidate: Candidate) -> float:
    """The largest difference seen; an error if it is more than rounding."""
    original, worst = candidate.original, 0.0
    if original is None:
        return worst
    is_text = isinstance(candidate.transform, Tokens)
    rows = _rows(package, len(candidate.inputs)) if is_text else _tensors(candidate.transform)
    for prompt in (None, *candidate.prompts):
        chosen = {} if prompt is None else {"prompt": prompt}
        expected = [original.call(*row, **chosen) for row in rows]
        for size in BATCHES if is_text else TENSOR_BATCHES:
            if is_text:
                columns = zip(candidate.inputs, zip(*rows, strict=True), strict=True)
                inputs = {column.name: list(values) for column, values in columns}
                found = run(package, inputs, size, prompt)
            else:
                found = run_tensors(package, rows, size)
            for name, row, off in _differences(found, expected, rows):
                if not off <= TOLERANCE:  # Also when it is not a number.
                    doubt = candidate.transform.padding_doubt if size > 1 else ""
                    raise ExportError(_report(original, name, row, size, off) + doubt)
                worst = max(worst, off)
    return worst


def check_pixels(package: Path, transform: Images) -> float:
    """Compares what the package's recipe makes of images with what the model's own processor does.

    Returns the largest difference in steps of 256; an error if it is more than rounding.
    """
    images, worst = _images(), 0.0
    about = tomllib.loads((package / "model.toml").read_text())["transform"]
    expected = transform.processor(images)
    found = pixels(about, [_png(image) for image in images])
    if found.shape != expected.shape:
        raise ExportError(
            f"the model's processor makes pixels of the shape {list(expected.shape[1:])}, and the package "
            f"{list(found.shape[1:])}; leave out --images to pass pixels that the processor made"
        )
    steps = torch.tensor(transform.std).reshape(-1, 1, 1) * 255
    for one, other in zip(found * steps, expected * steps, strict=True):
        worst = max(worst, (one - other).abs().max().item())
    if not worst <= STEPS:
        raise ExportError(
            f"the model's processor makes other pixels than the package, by {worst:.0f} of 255; leave out "
            "--images to pass pixels that the processor made"
        )
    return worst


def _images() -> list[Image.Image]:
    """Smooth ones, in which no filter is off by much for the rounding of a step in between."""
    generator = torch.Generator().manual_seed(23)
    made = []
    for width, height in ((320, 240), (200, 310), (256, 256), (93, 61)):
        noise = torch.rand((1, 3, 7, 9), generator=generator)
        smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic")[0]
        values = (smooth.clamp(0, 1) * 255).byte().permute(1, 2, 0).contiguous()
        made.append(Image.frombytes("RGB", (width, height), values.numpy().tobytes()))
    return made


def _png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue().hex()


def _tensors(transform: Transform) -> list[tuple[torch.Tensor, ...]]:
    """One tensor of a row for each argument, as a batch of one."""
    rows = TENSOR_BATCHES[-1]
    arguments = transform.example(rows, 1)
    return [tuple(argument[row : row + 1] for argument in arguments) for row in range(rows)]


def _differences(
    found: Columns, expected: list[dict[str, object]], rows: list[tuple[object, ...]]
) -> Iterator[tuple[str, tuple[object, ...], float]]:
    """Of each output of each row."""
    for index, (row, outputs) in enumerate(zip(rows, expected, strict=True)):
        for name, value in outputs.items():
            yield name, row, difference(found[name][index], value)


def _rows(package: Path, columns: int) -> list[tuple[str, ...]]:
    """The texts of each row. Those without any token are left out: no library computes them."""
    if columns == 2:
        return list(PAIRS)
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    return [(text,) for text in MIXED if tokenizer.encode(text).ids]


def difference(found: object, expected: object) -> float:
    """As for programs; infinite between other texts and lists of other lengths."""
    if isinstance(expected, str):
        return 0.0 if found == expected else float("inf")
    if not isinstance(expected, list):
        return abs(found - expected) / max(1.0, abs(expected))
    if any(isinstance(one, dict) for one in (*found, *expected)):
        return _weights_difference(*(dict(map(tuple, map(dict.values, one))) for one in (found, expected)))
    if len(found) != len(expected):
        return float("inf")
    if not expected or isinstance(expected[0], str):
        return 0.0 if found == expected else float("inf")
    pair = (torch.tensor([values], dtype=torch.float64) for values in (found, expected))
    return relative_difference(*pair)


def _weights_difference(found: dict[str, float], expected: dict[str, float]) -> float:
    """Between names with weights; one that weighs nothing but for rounding may be left out."""
    names = found.keys() | expected.keys()
    return max(abs(found.get(name, 0.0) - expected.get(name, 0.0)) for name in names)


def _report(
    original: Original, name: str, row: tuple[object, ...], rows: int, difference: float
) -> str:
    texts = [repr(text[:40]) for text in row if isinstance(text, str)]
    shown = ", ".join(texts) or "random values"
    where = "alone" if rows == 1 else f"in a batch of {rows} rows"
    return (
        f"the package differs from {original.name} by {difference:.2g} in {name!r} of {shown} "
        f"{where}; this model cannot be exported"
    )
