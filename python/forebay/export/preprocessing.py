"""How a folder's processor makes pixels of images, as far as a package can say it.

A package says: the shorter side, or both, become `resize` pixels, the middle of `crop` times `crop` stays,
and values from 0 to 1 are normalized. Processors can do other things; those are refused, because a model
would be given other pixels than it was trained with. What a package says is compared with what the
processor itself makes of images.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from PIL import Image

from . import trust
from .candidate import FILTERS, Images
from .errors import ExportError

# From this size on, ConvNext's processor resizes both sides and crops nothing.
CONVNEXT_WHOLE = 384
# What it resizes to before the crop, where a folder does not say it.
CONVNEXT_CROP_PCT = 224 / 256


@dataclass(frozen=True)
class Preprocessing:
    """What preprocessor_config.json of a folder says; nothing if there is none."""

    path: Path
    # What the processor does, with its own defaults; what the file says, if there is no such processor.
    stated: dict
    processor: object = field(default=None, compare=False)

    @classmethod
    def of(cls, folder: Path) -> "Preprocessing":
        """Reads a folder's."""
        path = folder / "preprocessor_config.json"
        if not path.exists():
            return cls(path, {})
        stated = json.loads(path.read_text(encoding="utf-8"))
        try:
            # Of Pillow, whose pixels packages have too.
            processor = transformers.AutoImageProcessor.from_pretrained(
                str(folder), backend="pil", local_files_only=True, **trust.options()
            )
        except (ValueError, OSError, KeyError, ImportError):
            return cls(path, stated)
        known = {name: value for name, value in processor.to_dict().items() if value is not None}
        return cls(path, known, processor)

    def normalization(self, mean: tuple, deviation: tuple) -> tuple[tuple, tuple]:
        """Mean and deviation, or these if none are stated."""
        stated = self.stated
        if stated.get("do_normalize") is False:
            return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        return tuple(stated.get("image_mean", mean)), tuple(stated.get("image_std", deviation))

    def check_values(self) -> None:
        """Refuses values that are not from 0 to 1 before they are normalized."""
        if self.stated.get("do_rescale") is False:
            raise self._refused("do_rescale is false")
        factor = self.stated.get("rescale_factor", 1 / 255)
        if not math.isclose(factor, 1 / 255, rel_tol=1e-3):
            raise self._refused(f"rescale_factor is {factor}, expected 1/255")
        if self.stated.get("offset") is True:
            raise self._refused("values are moved by an offset")

    def images(self, size: int, default: tuple[tuple, tuple], resample: int) -> Images:
        """The transform of image files for a model of `size` times `size` pixels."""
        self.check_values()
        if self.stated.get("do_resize") is False:
            raise self._refused("do_resize is false")
        number = int(self.stated.get("resample", resample))
        if number not in FILTERS:
            raise ExportError(
                f"{self.path}: there is no filter {number}, expected one of {sorted(FILTERS)}"
            )
        resize, fit = self._resize(size)
        normalization = self.normalization(*default)
        process = None if self.processor is None else self._process
        middle = "floored" if self.path.exists() else "rounded"
        return Images((3, size, size), resize, *normalization, FILTERS[number], fit, middle, process)

    def _process(self, images: list[Image.Image]) -> torch.Tensor:
        made = [self.processor(images=image, return_tensors="pt") for image in images]
        return torch.cat([pixels["pixel_values"] for pixels in made])

    def _resize(self, size: int) -> tuple[int, str]:
        """What the sides become before the middle of `size` times `size` is cut out, and which."""
        resize, fit = self._sides(size)
        is_convnext = self._processor().startswith("ConvNe")
        percentage = self.stated.get("crop_pct") or (CONVNEXT_CROP_PCT if is_convnext else None)
        crops = self.stated.get("do_center_crop")
        if percentage is not None and not crops and fit == "shorter":
            crop = resize
            if resize >= CONVNEXT_WHOLE:
                fit = "both"
            else:
                resize = int(resize / percentage)
        elif crops or (crops is None and self.processor is None):
            crop = self._crop(size)
        elif fit == "both":
            crop = resize
        else:
            raise self._refused("nothing is cut out, so that images keep their proportions")
        if crop != size or resize < size:
            sides = "both sides become" if fit == "both" else "the shorter side becomes"
            raise self._refused(
                f"{sides} {resize} and the crop {crop} pixels, expected a crop of {size}, and {size} or "
                "more for the side"
            )
        return resize, fit

    def _sides(self, size: int) -> tuple[int, str]:
        stated = self.stated.get("size", size)
        if isinstance(stated, int):
            return stated, "shorter"
        stated = {name: pixels for name, pixels in dict(stated).items() if pixels is not None}
        if stated.keys() == {"shortest_edge"}:
            return stated["shortest_edge"], "shorter"
        if stated.keys() == {"height", "width"} and stated["height"] == stated["width"]:
            return stated["height"], "both"
        raise self._refused(f"the sides become {stated}, which is neither the shorter one nor both alike")

    def _crop(self, size: int) -> object:
        crop = self.stated.get("crop_size", size)
        if isinstance(crop, dict):
            sides = {crop.get("height"), crop.get("width")}
            crop = sides.pop() if len(sides) == 1 else crop
        return crop

    def _processor(self) -> str:
        stated = self.stated
        return stated.get("image_processor_type") or stated.get("feature_extractor_type") or ""

    def _refused(self, why: str) -> ExportError:
        return ExportError(
            f"{self.path}: {why}; a package resizes the shorter side or both, cuts out the middle, and "
            "normalizes values from 0 to 1. Leave out --images and --normalize to pass pixels that "
            "were made by the model's own processor"
        )
