"""What a reader of a package computes, in Python: the format's description, as a program."""

import io
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .candidate import fields_of

Columns = dict[str, list]


def run(package: Path, inputs: Columns, rows: int, prompt: str | None = None) -> Columns:
    """The output columns for the input columns, in batches of `rows`.

    `prompt` is the name of one, "" for none; the package's own choice if it is not given.
    """
    about = tomllib.loads((package / "model.toml").read_text())
    columns = [inputs[column["name"]] for column in about["input"]]
    if name := about.get("prompt") if prompt is None else prompt:
        columns[0] = [about["prompts"][name] + text for text in columns[0]]
    starts = range(0, len(columns[0]), rows)
    batches = ([column[start : start + rows] for column in columns] for start in starts)
    return _outputs(package, about, (_arguments(package, about, batch) for batch in batches))


def run_tensors(package: Path, rows: list[tuple[torch.Tensor, ...]], size: int) -> Columns:
    """The same for what the transform makes of rows: the program's arguments of each, in batches."""
    about = tomllib.loads((package / "model.toml").read_text())
    batches = (zip(*rows[start : start + size], strict=True) for start in range(0, len(rows), size))
    return _outputs(package, about, ([torch.cat(a) for a in batch] for batch in batches))


def _outputs(package: Path, about: dict, batches: Iterable[list[torch.Tensor]]) -> Columns:
    program = _program(package, about)
    outputs: Columns = {column["name"]: [] for column in about["output"]}
    for arguments in batches:
        with torch.no_grad():
            results = program(*arguments)
        results = list(results) if isinstance(results, tuple) else [results]
        lists = any(column["type"].endswith("[]") for column in about["output"])
        kept = results.pop() if lists else None
        for column in about["output"]:
            fields = fields_of(column["type"])
            own = [results.pop(0) for _ in fields or (None,)]
            labels = column.get("labels")
            names = json.loads((package / labels).read_text()) if labels else None
            if not fields:
                outputs[column["name"]] += _values(column["type"], own[0], kept, names)
                continue
            parts = (
                _values(f"{kind}[]", result, kept, names if kind == "STRING" else None)
                for kind, result in zip(fields.values(), own, strict=True)
            )
            for row in zip(*parts, strict=True):
                structs = [dict(zip(fields, values, strict=True)) for values in zip(*row, strict=True)]
                outputs[column["name"]].append(structs)
        assert not results
    return outputs


def _values(
    sql_type: str, result: torch.Tensor, kept: torch.Tensor | None, names: list[str] | None
) -> list[object]:
    """Of each row."""
    if "[" not in sql_type:
        result = result.flatten()  # A number may come as a vector of one.
    found = []
    for row, values in enumerate(result):
        values = (values[kept[row]] if sql_type.endswith("[]") else values).tolist()
        if names is not None:
            values = [names[i] for i in values] if isinstance(values, list) else names[values]
        found.append(values)
    return found


def _program(package: Path, about: dict) -> Callable[..., object]:
    path = package / about["runtime"]["program"]
    if about["runtime"]["kind"] != "onnx":
        return torch.jit.load(path, map_location="cpu")
    from .onnx_program import OnnxProgram

    columns = (column["name"] for column in about["input"])
    return OnnxProgram(path, tuple(about["transform"].get("arguments", columns)))


def _arguments(package: Path, about: dict, batch: list[list]) -> list[torch.Tensor]:
    transform = about["transform"]
    if transform["kind"] == "tensor":
        return [_tensor(*pair) for pair in zip(about["input"], batch, strict=True)]
    if transform["kind"] == "image":
        return [pixels(transform, batch[0])]
    if template := transform.get("template"):
        names = [column["name"] for column in about["input"]]
        batch = [[_joined(template, names, texts) for texts in zip(*batch, strict=True)]]
    about_tokens = {key: transform[key] for key in ("max_tokens", "pad_id", "arguments")}
    return token_arguments(package / transform["tokenizer"], batch, **about_tokens)


def token_arguments(
    file: Path, batch: list[list[str]], *, max_tokens: int, pad_id: int, arguments: Iterable[str]
) -> list[torch.Tensor]:
    """What the transform `tokenize` makes of columns of texts, by a tokenizer's file."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.enable_padding(pad_id=pad_id)
    texts = batch[0] if len(batch) == 1 else list(zip(*batch, strict=True))
    encodings = tokenizer.encode_batch(texts)

    def offsets(side: int) -> list[list[int]]:
        return [
            [
                -1 if special else pair[side]
                for pair, special in zip(e.offsets, e.special_tokens_mask, strict=True)
            ]
            for e in encodings
        ]

    def places(named: str) -> list[list[int]]:
        return [
            [
                -1 if special or place is None else place
                for place, special in zip(getattr(e, named), e.special_tokens_mask, strict=True)
            ]
            for e in encodings
        ]

    made = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
        "token_starts": offsets(0),
        "token_ends": offsets(1),
        "token_texts": places("sequence_ids"),
        "token_words": places("word_ids"),
    }
    return [torch.tensor(made[name]) for name in arguments]


def _joined(template: str, names: list[str], texts: tuple[str, str]) -> str:
    before, rest = template.split(f"{{{names[0]}}}")
    between, after = rest.split(f"{{{names[1]}}}")
    return f"{before}{texts[0]}{between}{texts[1]}{after}"


def _tensor(column: dict, values: list) -> torch.Tensor:
    kinds = {"DOUBLE": torch.float64, "INT": torch.int32, "BIGINT": torch.int64}
    tensor = torch.tensor(values, dtype=kinds.get(column["type"].partition("[")[0], torch.float32))
    return tensor.reshape(-1, *column["shape"]) if "shape" in column else tensor


def pixels(transform: dict, files: list[str]) -> torch.Tensor:
    """Files in hexadecimal → normalized `[rows, 3, crop, crop]`."""
    from PIL import Image
    from torchvision import transforms

    resize, recipe = transform["resize"], transform.get("filter", "bilinear")
    size = (resize, resize) if transform.get("fit") == "both" else resize
    steps = transforms.Compose(
        [
            transforms.Resize(size, transforms.InterpolationMode(recipe)),
            _middle(transform),
            transforms.ToTensor(),
            transforms.Normalize(transform["mean"], transform["std"]),
        ]
    )
    images = [Image.open(io.BytesIO(bytes.fromhex(file))).convert("RGB") for file in files]
    return torch.stack([steps(image) for image in images])


def _middle(transform: dict) -> Callable[[object], object]:
    from torchvision import transforms

    crop = transform["crop"]
    if transform.get("middle", "rounded") == "rounded":
        return transforms.CenterCrop(crop)

    def floored(image: object) -> object:
        left, top = ((side - crop) // 2 for side in image.size)
        return image.crop((left, top, left + crop, top + crop))

    return floored
