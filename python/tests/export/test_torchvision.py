"""One small classifier of every family of torchvision, with seeded weights: exported, it gives what
torchvision gives, and its package resizes as torchvision does."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from torchvision import models

from forebay.export import command
from forebay.export import program
from forebay.export.candidate import Candidate, Column, Tensors
from forebay.export.reader import run

# Family → a small one of it. test_no_family_is_missing keeps the list whole.
FAMILIES = {
    "alexnet": "alexnet",
    "convnext": "convnext_tiny",
    "densenet": "densenet121",
    "efficientnet": "efficientnet_b0",
    "googlenet": "googlenet",
    "inception": "inception_v3",
    "maxvit": "maxvit_t",
    "mnasnet": "mnasnet0_5",
    "mobilenetv2": "mobilenet_v2",
    "mobilenetv3": "mobilenet_v3_small",
    "regnet": "regnet_x_400mf",
    "resnet": "resnet18",
    "shufflenetv2": "shufflenet_v2_x0_5",
    "squeezenet": "squeezenet1_1",
    "swin_transformer": "swin_v2_t",
    "vgg": "vgg11_bn",
    "vision_transformer": "vit_b_32",
}
LABELS = ("first", "second", "third")


def _as_if_trained(model: torch.nn.Module) -> None:
    """Untrained, batch normalization changes nothing."""
    for norm in model.modules():
        if isinstance(norm, (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            torch.nn.init.normal_(norm.bias, 0, 0.1)


def test_no_family_is_missing() -> None:
    names = models.list_models(module=models)
    files = {models.get_model_builder(name).__module__.rsplit(".", 1)[-1] for name in names}
    assert files == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES.values(), ids=FAMILIES.keys())
def test_a_classifier_of_every_family_is_exported(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = models.get_model(name, weights=None, num_classes=len(LABELS)).eval()
    _as_if_trained(model)
    # A state dictionary of PyTorch's own: MnasNet's says which version of it these weights are of.
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    files = ["--weights", str(tmp_path / "weights.pth")]
    files += ["--labels", str(tmp_path / "labels.txt"), "--output", str(tmp_path / "package")]
    assert command.main(["--source", f"torchvision/{name}", *files]) == 0
    about = tomllib.loads((tmp_path / "package/model.toml").read_text())
    shape = about["input"][0]["shape"]
    preset = models.get_model_weights(name).DEFAULT.transforms()
    assert shape == [3, *preset.crop_size * 2]
    assert json.loads((tmp_path / "package/labels.json").read_text()) == list(LABELS)
    pixels = torch.randn((2, *shape), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        scores = model(pixels).softmax(-1)
    found = run(tmp_path / "package", {"pixels": pixels.flatten(1).tolist()}, 2)
    assert torch.allclose(torch.tensor(found["scores"]), scores, atol=1e-5)


def test_batch_normalization_becomes_part_of_convolutions(tmp_path: Path) -> None:
    model = models.get_model("resnet18", weights=None, num_classes=len(LABELS))
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    files = ["--weights", str(tmp_path / "weights.pth")]
    files += ["--labels", str(tmp_path / "labels.txt"), "--output", str(tmp_path / "package")]
    assert command.main(["--source", "torchvision/resnet18", *files]) == 0
    loaded = torch.jit.load(tmp_path / "package/model.pt")
    kinds = [node.kind() for node in loaded.inlined_graph.nodes()]
    assert kinds.count("aten::convolution") == 20
    assert "aten::batch_norm" not in kinds
    kernels = [weights for weights in loaded.parameters() if weights.dim() == 4]
    assert len(kernels) == 20
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "efficientnet_b0"])
def test_packages_of_image_files_resize_as_torchvision_does(name: str, tmp_path: Path) -> None:
    model = models.get_model(name, weights=None, num_classes=1000)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    files = ["--weights", str(tmp_path / "weights.pth"), "--images"]
    output = ["--output", str(tmp_path / "package")]
    assert command.main(["--source", f"torchvision/{name}", *files, *output]) == 0
    stated = tomllib.loads((tmp_path / "package/model.toml").read_text())["transform"]
    preset = models.get_model_weights(name).DEFAULT.transforms()
    assert stated["filter"] == preset.interpolation.value
    assert [stated["resize"], stated["crop"]] == [*preset.resize_size, *preset.crop_size]


class Same(torch.nn.Module):
    """A convolution whose padding is a word, as EfficientNet of transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding="same", bias=False)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(pixels)).flatten(1)


class Twice(torch.nn.Module):
    """A convolution that is normalized in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, bias=False)
        self.one, self.other = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        one = self.one(self.convolution(pixels))
        return (one + self.other(self.convolution(pixels.flip(-1)))).flatten(1)


class Shared(torch.nn.Module):
    """A normalization of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (torch.nn.Conv2d(3, 4, 3, bias=False) for _ in range(2))
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return (self.norm(self.one(pixels)) - self.norm(self.other(pixels))).flatten(1)


class Deep(torch.nn.Module):
    """A convolution of three dimensions, whose kernels have five."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv3d(1, 4, 3, bias=False)
        self.norm = torch.nn.BatchNorm3d(4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(pixels[:, None])).flatten(1)


@pytest.mark.parametrize("kind", [Same, Twice, Shared, Deep])
def test_what_cannot_be_folded_stays(kind: type, tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = kind().eval().requires_grad_(False)
    _as_if_trained(module)
    columns = (Column("pixels", "FLOAT[192]"),), (Column("output", "FLOAT[n]"),)
    candidate = Candidate(module, *columns, Tensors((3, 8, 8)), "", lambda rows: rows)
    program.write_program(candidate, tmp_path / "model.pt")
    assert program.test_program(candidate, tmp_path / "model.pt", "deterministic") < 1e-6


def test_rounding_is_told_from_other_results() -> None:
    exact = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)

    def is_rounding(off: float, model: float) -> bool:
        return program._is_rounding(exact + off, exact + model, (exact,))

    assert is_rounding(3.6e-5, 6e-6)
    assert not is_rounding(3.6e-5, 1e-6), "the model is well conditioned"
    assert not is_rounding(6e-4, 3e-4), "too much, whatever the model does"
    assert not is_rounding(float("nan"), 6e-6)
    assert not program._is_rounding(exact, exact, ()), "nobody knows"
