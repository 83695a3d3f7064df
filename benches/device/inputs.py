"""Inputs, made with the standard library and PyTorch."""

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from models import TOKENS, VOCABULARY

SIDE = 224


@dataclass(frozen=True)
class Inputs:
    """Token ids and pixels, as tensors and as files."""

    ids: torch.Tensor
    pixels: torch.Tensor
    folder: Path
    texts: Path | None
    tokenizer: Path | None


def make(folder: Path, rows: int, images: int, tokenizer: Path | None) -> Inputs:
    """All of them, seeded."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, VOCABULARY, (rows, TOKENS), generator=generator, dtype=torch.int32)
    with open(folder / "ids.json", "w") as file:
        for at, row in enumerate(ids.tolist()):
            file.write(json.dumps({"id": at, "ids": row}) + "\n")
    coarse = torch.rand(images, 3, 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, SIDE, mode="bicubic").clamp(0, 1)
    pixels = (smooth * 255).to(torch.uint8)
    (folder / "images").mkdir()
    for at in range(images):
        (folder / f"images/{at:05}.bmp").write_bytes(bitmap(pixels[at]))
    texts = make_texts(folder, rows, tokenizer) if tokenizer is not None else None
    return Inputs(ids, pixels, folder, texts, tokenizer)


def bitmap(pixels: torch.Tensor) -> bytes:
    """A BMP file of `[3, 224, 224]` bytes: no codec is needed, and nothing is lost."""
    body = pixels.flip(0).permute(1, 2, 0).flip(0).contiguous().numpy().tobytes()
    size = 54 + len(body)
    info = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 24, 0, len(body), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", size, 0, 0, 54) + info + body


def make_texts(folder: Path, rows: int, tokenizer: Path) -> Path:
    """Texts of log-normal lengths from the tokenizer's own words."""
    words = [word for word in json.loads(tokenizer.read_text())["model"]["vocab"] if word.isalpha()]
    chance = random.Random(7)
    path = folder / "texts.json"
    with open(path, "w") as file:
        for at in range(rows):
            length = min(180, max(3, int(chance.lognormvariate(3.0, 0.7))))
            text = " ".join(chance.choices(words, k=length))
            file.write(json.dumps({"id": at, "text": text}) + "\n")
    return path
