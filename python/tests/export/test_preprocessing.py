"""What processors of images do is said in the package as it is, or refused."""

import json
from pathlib import Path

import pytest

from forebay.export.candidate import Images
from forebay.export.errors import ExportError
from forebay.export.preprocessing import Preprocessing

DEFAULT = ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def _images(folder: Path, pixels: int, **stated: object) -> Images:
    (folder / "preprocessor_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return Preprocessing.of(folder).images(pixels, DEFAULT, 2)


def test_nothing_stated_is_a_crop_of_the_models_size(tmp_path: Path) -> None:
    found = Preprocessing.of(tmp_path).images(224, DEFAULT, 2)
    assert found == Images((3, 224, 224), 224, *DEFAULT, "bilinear")


@pytest.mark.parametrize(
    ("stated", "resize"),
    [
        # CLIP
        ({"size": 256, "crop_size": 224, "do_center_crop": True}, 256),
        ({"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}, 224),
        # ResNet and ConvNext
        ({"size": 224, "crop_pct": 0.875, "feature_extractor_type": "ConvNextFeatureExtractor"}, 256),
        ({"size": {"shortest_edge": 224}, "image_processor_type": "ConvNextImageProcessor"}, 256),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.95}, 235),
        ({"do_rescale": True, "do_normalize": True, "do_resize": True, "rescale_factor": 1 / 255}, 224),
    ],
)
def test_the_shorter_side_and_the_crop(stated: dict, resize: int, tmp_path: Path) -> None:
    found = _images(tmp_path, 224, **stated)
    assert (found.resize, found.shape) == (resize, (3, 224, 224))


def test_mean_deviation_and_filter(tmp_path: Path) -> None:
    found = _images(tmp_path, 32, image_mean=[0, 1, 2], image_std=[3, 4, 5], resample=3)
    assert (found.mean, found.std, found.filter) == ((0, 1, 2), (3, 4, 5), "bicubic")


def test_values_that_are_not_normalized_stay_from_0_to_1(tmp_path: Path) -> None:
    found = _images(tmp_path, 224, do_normalize=False, image_mean=[0, 1, 2], image_std=[3, 4, 5])
    assert (found.mean, found.std) == ((0, 0, 0), (1, 1, 1))


def test_the_middle_is_that_of_transformers(tmp_path: Path) -> None:
    assert _images(tmp_path, 224).middle == "floored"


@pytest.mark.parametrize(
    ("stated", "resize"),
    [
        ({"size": {"height": 224, "width": 224}, "do_center_crop": False}, 224),
        ({"size": 224, "image_processor_type": "ViTImageProcessor"}, 224),
        ({"size": {"height": 256, "width": 256}, "crop_size": 224, "do_center_crop": True}, 256),
        ({"size": {"height": 224, "width": 224}, "image_processor_type": "SiglipImageProcessor"}, 224),
    ],
)
def test_both_sides(stated: dict, resize: int, tmp_path: Path) -> None:
    found = _images(tmp_path, 224, **stated)
    assert (found.resize, found.fit) == (resize, "both")


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"size": {"height": 224, "width": 200}}, "neither the shorter one nor both alike"),
        ({"size": 256, "image_processor_type": "ViTImageProcessor"}, "both sides become 256 and the crop 256"),
        ({"size": {"shortest_edge": 224, "longest_edge": 300}}, "neither the shorter one nor both alike"),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, "both sides become 384 and the crop 384"),
        ({"size": {"shortest_edge": 224}, "do_center_crop": False}, "images keep their proportions"),
        ({"size": {"shortest_edge": 256}, "crop_size": 240}, "the crop 240 pixels"),
        ({"size": {"shortest_edge": 200}, "crop_size": 224}, "the shorter side becomes 200"),
        ({"crop_size": {"height": 224, "width": 200}}, "expected a crop of 224"),
        ({"do_resize": False}, "do_resize is false"),
        ({"do_rescale": False}, "do_rescale is false"),
        ({"rescale_factor": 1 / 127.5}, "expected 1/255"),
    ],
)
def test_what_a_package_cannot_say_is_refused(stated: dict, why: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=why) as refused:
        _images(tmp_path, 224, **stated)
    assert "eave out --images" in str(refused.value)


def test_filters_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no filter 9"):
        _images(tmp_path, 224, resample=9)
