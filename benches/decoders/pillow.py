"""The same with Pillow and torchvision, on one thread; and the images for all.

    tools/python benches/decoders/pillow.py draw|time FOLDER
"""

import io
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import models, transforms
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

SIZES = ((500, 375), (640, 480), (1024, 768), (1600, 1200), (4000, 3000))
IMAGES, ROUNDS, RESIZE, CROP = 8, 5, 256, 224
RECIPE = transforms.Compose(
    [transforms.Resize(RESIZE), transforms.CenterCrop(CROP), transforms.PILToTensor()]
)
# What the guides of torchvision's models have: the same, and then normalized floats.
FLOAT_RECIPE = models.ResNet18_Weights.DEFAULT.transforms()
TENSOR_RECIPE = v2.Compose([v2.Resize(RESIZE), v2.CenterCrop(CROP)])


def main() -> None:
    """Runs the command line."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    draw(folder) if what == "draw" else measure(folder)


def draw(folder: Path) -> None:
    """Images whose frequencies are those of photos, in the qualities that cameras and the web use."""
    random = np.random.default_rng(7)
    for width, height in SIZES:
        (folder / f"{width:04}x{height:04}").mkdir(parents=True, exist_ok=True)
        y, x = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
        frequency = np.sqrt(x * x + y * y)
        frequency[0, 0] = 1

        def noise(power: float) -> np.ndarray:
            white = np.fft.rfft2(random.standard_normal((height, width)))
            field = np.fft.irfft2(white / frequency**power, s=(height, width))
            return field / field.std()

        for at in range(IMAGES):
            grey = noise(1.2)
            pixels = np.stack([grey + 0.35 * noise(1.3) for _ in range(3)], axis=-1)
            pixels = (pixels - pixels.mean()) / pixels.std() * 52 + 118
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            path = folder / f"{width:04}x{height:04}" / f"{at}.jpg"
            image.save(path, quality=(75, 85, 90)[at % 3])


def measure(folder: Path) -> None:
    """Prints one line per size and way."""

    def draft(data: bytes) -> Image.Image:
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (RESIZE, RESIZE))
        return image.convert("RGB")

    def tensor(data: bytes) -> torch.Tensor:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_jpeg(encoded, mode=ImageReadMode.RGB)

    def pillow(data: bytes) -> Image.Image:
        return Image.open(io.BytesIO(data)).convert("RGB")

    ways = {
        "Pillow": (pillow, RECIPE),
        "Pillow, to floats": (pillow, FLOAT_RECIPE),
        "Pillow, draft": (draft, RECIPE),
        "torchvision, tensors": (tensor, TENSOR_RECIPE),
    }
    for size in sorted(folder.iterdir()):
        files = [path.read_bytes() for path in size.iterdir()]
        for name, (decode, steps) in ways.items():
            decoding, recipe = best(files, decode), best(files, lambda data: steps(decode(data)))
            print(
                f'{{"size": "{size.name}", "decoder": "{name}", "decode_ms": {decoding:.2f}, '
                f'"recipe_ms": {recipe:.2f}}}'
            )


def best(files: list[bytes], work: object) -> float:
    """Milliseconds per image."""
    found = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for data in files:
            work(data)
        found = min(found, (time.perf_counter() - start) / len(files) * 1e3)
    return found


if __name__ == "__main__":
    main()
