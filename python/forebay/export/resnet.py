"""500 small images, ResNet-18 with seeded weights, and the labels that PyTorch's own pipeline gives.

Weights drawn at random give nearly all images the same class, and what is near a border changes sides
with the rounding of a decoder. So the statistics of normalization are those of the images, and the
head is fitted to tell apart ten kinds of them, as training would: a palette each.
"""

import json
from pathlib import Path

import torch
from PIL import Image
from torchvision import models, transforms

from . import command

IMAGES, CLASSES = 500, 10
# Images whose statistics stand for all.
CALIBRATION = 100
# Of the fit of the head.
RIDGE, SCALE = 1.0, 8.0
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
    code = command.main([*source, *about, "--output", str(folder / "package")])
    weights.unlink()
    names.unlink()
    rows = []
    for start in range(0, len(files), BATCH):
        batch = files[start : start + BATCH]
        best = _logits(model, batch).argmax(-1).tolist()
        pairs = zip(batch, best, strict=True)
        rows += [{"file": file.name, "label": f"class {index}"} for file, index in pairs]
    (folder / "labels.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return code


def _draw(folder: Path) -> list[Path]:
    """Smooth noise of ten palettes in several sizes, every second one a JPEG."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(17)
    palettes = torch.rand((CLASSES, 3, 1, 1), generator=generator)
    files = []
    for number in range(IMAGES):
        width, height = (96 + 8 * (number % 5), 128 - 16 * (number % 4))
        detail = 3 + number % 9
        noise = torch.rand((1, 3, detail, detail), generator=generator)
        smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic")[0]
        tint = palettes[number % CLASSES]
        image = transforms.functional.to_pil_image((0.6 * smooth + 0.4 * tint).clamp(0, 1))
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
        head, model.fc = model.fc, torch.nn.Identity()
        batches = [files[start : start + BATCH] for start in range(0, IMAGES, BATCH)]
        features = torch.cat([_logits(model, batch) for batch in batches]).double()
        mean = features.mean(0)
        kinds = torch.arange(IMAGES) % CLASSES
        wanted = SCALE * torch.nn.functional.one_hot(kinds, CLASSES).double()
        # Ridge regression, by what has as many rows as images.
        centered = features - mean
        gram = centered @ centered.T + RIDGE * torch.eye(IMAGES, dtype=torch.float64)
        weight = (centered.T @ torch.linalg.solve(gram, wanted)).T
        head.weight.copy_(weight)
        head.bias.copy_(-(weight @ mean))
        model.fc = head
    return model.requires_grad_(False)


def _logits(model: torch.nn.Module, files: list[Path]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.stack([_pixels(file) for file in files]))


def _pixels(file: Path) -> torch.Tensor:
    return STEPS(Image.open(file).convert("RGB"))
