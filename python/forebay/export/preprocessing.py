"""How a folder's processor makes pixels of images, as far as a package can say it.

A package says: the shorter side becomes `resize` pixels, the middle of `crop` times `crop` stays, and
values from 0 to 1 are normalized. Processors can do other things; those are refused, because a model
would be given other pixels than it was trained with.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from .candidate import FILTERS, Images
from .errors import ExportError

# From this size on, ConvNext's processor resizes both sides and crops nothing.
CONVNEXT_WHOLE = 384
# What it resizes to before the crop, where a folder does not say it.
CONVNEXT_CROP_PCT = 224 / 256
# Processors for which a size of one number is that of both sides.
BOTH_SIDES = ("ViT", "DeiT", "Beit", "EfficientNet", "Swin", "Siglip")


@dataclass(frozen=True)
class Preprocessing:
    """What preprocessor_config.json of a folder says; nothing if there is none."""

    path: Path
    stated: dict

    @classmethod
    def of(cls, folder: Path) -> "Preprocessing":
        """Reads a folder's."""
        path = folder / "preprocessor_config.json"
        stated = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return cls(path, stated)

    def normalization(self, mean: tuple, deviation: tuple) -> tuple[tuple, tuple]:
        """Mean and deviation, or these if none are stated."""
        stated = self.stated
        return tuple(stated.get("image_mean", mean)), tuple(stated.get("image_std", deviation))

    def check_values(self) -> None:
        """Refuses values that are not from 0 to 1 and then normalized."""
        for step in ("do_rescale", "do_normalize"):
            if self.stated.get(step) is False:
                raise self._refused(f"{step} is false")
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
        number = self.stated.get("resample", resample)
        if number not in FILTERS:
            raise ExportError(
                f"{self.path}: there is no filter {number}, expected one of {sorted(FILTERS)}"
            )
        return Images((3, size, size), self._resize(size), *self.normalization(*default), FILTERS[number])

    def _resize(self, size: int) -> int:
        """What the shorter side becomes before the middle of `size` times `size` is cut out."""
        shorter, is_convnext = self._shorter_side(size), self._processor().startswith("ConvNext")
        percentage = self.stated.get("crop_pct") or (CONVNEXT_CROP_PCT if is_convnext else None)
        crops = self.stated.get("do_center_crop")
        if percentage is not None and not crops:
            if shorter >= CONVNEXT_WHOLE:
                raise self._refused(f"from {CONVNEXT_WHOLE} pixels on, both sides are resized")
            crop, shorter = shorter, int(shorter / percentage)
        elif crops is False:
            raise self._refused("do_center_crop is false, so that images keep their proportions")
        else:
            crop = self._crop(size)
        if crop != size or shorter < size:
            raise self._refused(
                f"the shorter side becomes {shorter} and the crop {crop} pixels, expected a crop of "
                f"{size}, and {size} or more for the side"
            )
        return shorter

    def _shorter_side(self, size: int) -> int:
        resize = self.stated.get("size", size)
        if isinstance(resize, dict):
            shorter = resize.get("shortest_edge")
            if not isinstance(shorter, int) or resize.keys() - {"shortest_edge"}:
                raise self._refused(f"both sides become {resize}, whatever the image's proportions are")
            return shorter
        if not isinstance(resize, int) or self._processor().startswith(BOTH_SIDES):
            raise self._refused(f"both sides become {resize}, whatever the image's proportions are")
        return resize

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
            f"{self.path}: {why}; a package resizes the shorter side, cuts out the middle, and "
            "normalizes values from 0 to 1. Leave out --images and --normalize to pass pixels that "
            "were made by the model's own processor"
        )
