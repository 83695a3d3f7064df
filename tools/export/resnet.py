"""500 small images, ResNet-18 with seeded weights, and the labels that PyTorch's own pipeline gives.

Weights drawn at random give nearly all images the same class. So statistics of normalization are
those of the images, and the head's bias takes each class's mean away: all classes occur.
"""

import json
from pathlib import Path

import torch
from PIL import Image
from torchvision import models, transforms

import export

IMAGES, CLASSES = 500, 10
# Images whose statistics stand for all.
CALIBRATION = 64
BATCH = 50
STEPS = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


def make(folder: Path) -> int:
    """Writes FOLDER/images, FOLDER/package and FOLDER/labels.json; returns the exit code."""
    files = _draw(folder / "images")
    model = _calibrated(files)
    weights, names = folder / "weights.pth", folder / "names.txt"
    torch.save(model.state_dict(), weights)
    names.write_text("".join(f"class {n}\n" for n in range(CLASSES)), encoding="utf-8")
    source = ["--source", "torchvision/resnet18", "--weights", str(weights), "--images"]
    about = ["--labels", str(names), "--license", "CC0-1.0", "--origin", "random weights"]
    code = export.main([*source, *about, "--output", str(folder / "package")])
    weights.unlink()
    names.unlink()
    rows = []
    for start in range(0, len(files), BATCH):
        best = _logits(model, files[start : start + BATCH]).softmax(-1).topk(2)
        for file, index, (first, second) in zip(
            files[start : start + BATCH], best.indices[:, 0].tolist(), best.values.tolist(), strict=True
        ):
            row = {"file": file.name, "label": f"class {index}", "margin": first - second}
            rows.append(row)
    (folder / "labels.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return code


def _draw(folder: Path) -> list[Path]:
    """Smooth noise in several sizes, every second one a JPEG."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(17)
    files = []
    for number in range(IMAGES):
        width, height = (96 + 8 * (number % 5), 128 - 16 * (number % 4))
        detail = 3 + number % 9
        noise = torch.rand((1, 3, detail, detail), generator=generator)
        smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic")[0]
        image = transforms.functional.to_pil_image(smooth.clamp(0, 1))
        file = folder / f"{number:03}.{'jpg' if number % 2 else 'png'}"
        image.save(file, **({"quality": 92} if number % 2 else {}))
        files.append(file)
    return files


def _calibrated(files: list[Path]) -> torch.nn.Module:
    torch.manual_seed(19)
    model = models.resnet18(weights=None, num_classes=CLASSES)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # The mean of all batches.
    with torch.no_grad():
        model.train()(torch.stack([_pixels(file) for file in files[:CALIBRATION]]))
        model.eval()
        model.fc.weight *= 20
        model.fc.bias -= _logits(model, files[:CALIBRATION]).mean(0)
    return model.requires_grad_(False)


def _logits(model: torch.nn.Module, files: list[Path]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.stack([_pixels(file) for file in files]))


def _pixels(file: Path) -> torch.Tensor:
    return STEPS(Image.open(file).convert("RGB"))
