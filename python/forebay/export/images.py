"""Makes the images that tests read, and what Pillow, torchvision and transformers make of them.

    tools/python -m forebay.export.images OUTPUT

- OUTPUT/good: every format and kind of image that Forebay decodes
- OUTPUT/bad: files that look like images and are none
- OUTPUT/expected: of each good one, the bytes of its pixels (`NAME.rgb`), resized (`NAME.resized`), with
  both sides made equal (`NAME.square`), and after the recipe of classifiers as torchvision cuts out the
  middle (`NAME.recipe`) and as transformers does (`NAME.floored`)
- OUTPUT/reference.json: names, sizes, and the recipes' sizes

Seeded: the same images each time.
"""

import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from torchvision import transforms
from transformers.image_transforms import center_crop

RESIZED, SQUARE = (37, 31), (48, 48)
SMALL, LARGE = (64, 56), (256, 224)
EXIF_ORIENTATION = 0x0112


def main() -> int:
    """Runs the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print("usage: images.py OUTPUT", file=sys.stderr)
        return 2
    output = Path(sys.argv[1])
    for folder in ("good", "bad", "expected"):
        (output / folder).mkdir(parents=True)
    for name, data in _bad().items():
        (output / "bad" / name).write_bytes(data)
    reference = []
    for name, data in _good().items():
        (output / "good" / name).write_bytes(data)
        recipe = LARGE if name.startswith("large") else SMALL
        reference.append({**_expect(output / "expected", name, data, recipe), "recipe": recipe})
    (output / "reference.json").write_text(json.dumps(reference, indent=1), encoding="utf-8")
    return 0


def _expect(folder: Path, name: str, data: bytes, recipe: tuple[int, int]) -> dict:
    stored = Image.open(io.BytesIO(data))
    upright = ImageOps.exif_transpose(stored).convert("RGB")
    if name.startswith("large"):
        (folder / f"{name}.rgb").write_bytes(b"")
    else:
        (folder / f"{name}.rgb").write_bytes(upright.tobytes())
    resized = upright.resize(RESIZED, Image.Resampling.BILINEAR)
    (folder / f"{name}.resized").write_bytes(resized.tobytes())
    square = upright.resize(SQUARE, Image.Resampling.BILINEAR)
    (folder / f"{name}.square").write_bytes(square.tobytes())
    steps = transforms.Compose([transforms.Resize(recipe[0]), transforms.CenterCrop(recipe[1])])
    (folder / f"{name}.recipe").write_bytes(steps(upright).tobytes())
    size = {"width": upright.width, "height": upright.height}
    resized = np.array(steps.transforms[0](upright))
    middle = center_crop(resized, (recipe[1], recipe[1]), input_data_format="channels_last")
    (folder / f"{name}.floored").write_bytes(middle.astype(np.uint8).tobytes())
    return {"name": name, "format": stored.format.lower(), **size}


def _good() -> dict[str, bytes]:
    photo, small = _photo(200, 150), _photo(90, 67)
    alpha = small.convert("RGBA")
    alpha.putalpha(_photo(90, 67).convert("L"))
    frames = [small, _photo(90, 67)]
    tilted = {f"exif{n}.jpg": _save(photo, "JPEG", quality=92, exif=_exif(n)) for n in range(2, 9)}
    return {
        "baseline.jpg": _save(photo, "JPEG", quality=90, subsampling=0),
        "subsampled.jpg": _save(photo, "JPEG", quality=75),
        "half.jpg": _save(photo, "JPEG", quality=80, subsampling=1),
        "sampled_alike.jpg": _sampled_alike(),
        "restarts.jpg": _save(photo, "JPEG", quality=80, restart_marker_blocks=4),
        "junk.jpg": _with_junk(_save(photo, "JPEG", quality=80)),
        "progressive.jpg": _save(photo, "JPEG", quality=85, progressive=True),
        "grey.jpg": _save(photo.convert("L"), "JPEG", quality=90),
        "cmyk.jpg": _save(photo.convert("CMYK"), "JPEG", quality=95),
        **tilted,
        "large.jpg": _save(_photo(2800, 2100), "JPEG", quality=85),
        "large_half.jpg": _save(_photo(1300, 1200), "JPEG", quality=85),
        "large_progressive.jpg": _save(_photo(2200, 2900), "JPEG", quality=75, progressive=True),
        "wide.jpg": _save(_photo(20_000, 10), "JPEG", quality=85),
        "one.png": _save(Image.new("RGB", (1, 1), (200, 100, 50)), "PNG"),
        "rgb.png": _save(small, "PNG"),
        "alpha.png": _save(alpha, "PNG"),
        "palette.png": _save(small.quantize(64), "PNG"),
        "grey.png": _save(small.convert("L"), "PNG"),
        "lossless.webp": _save(small, "WEBP", lossless=True),
        "lossy.webp": _save(small, "WEBP", quality=90),
        "animation.gif": _save(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "rgb.bmp": _save(small, "BMP"),
        "rgb.tiff": _save(small, "TIFF", compression="tiff_lzw"),
    }


def _bad() -> dict[str, bytes]:
    jpeg = _save(_photo(200, 150), "JPEG", quality=90)
    png = _save(_photo(90, 67), "PNG")
    return {
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "gap.jpg": jpeg[: len(jpeg) // 2] + jpeg[-2:],
        "truncated.png": png[: len(png) // 2],
        "header_only.jpg": jpeg[:64],
        "empty.jpg": b"",
        "mislabelled.jpg": b"<html><body>404 Not Found</body></html>",
        "bomb.png": _bomb(60_000, 60_000),
        "bomb.jpg": _with_size(jpeg, 65_000, 65_000),
        "noise.jpg": b"\xff\xd8\xff\xe0" + np.random.default_rng(3).bytes(4000),
    }


def _with_junk(jpeg: bytes) -> bytes:
    """A JPEG with bytes that belong to nothing before its end, as some cameras leave them."""
    return jpeg[:-2] + bytes(37) + jpeg[-2:]


def _sampled_alike() -> bytes:
    """A JPEG in which all components are stored alike, and say so as two to one."""
    jpeg = _save(_photo(208, 160), "JPEG", quality=85, keep_rgb=True, subsampling=0)
    at = jpeg.index(b"\xff\xc0") + 11
    factors = bytearray(jpeg)
    factors[at : at + 9 : 3] = b"\x21" * 3
    return bytes(factors)


def _photo(width: int, height: int, random: np.random.Generator = np.random.default_rng(7)) -> Image.Image:
    """Colours whose frequencies are those of photos: the higher, the weaker."""
    y, x = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt(x * x + y * y)
    frequency[0, 0] = 1

    def noise(power: float) -> np.ndarray:
        white = np.fft.rfft2(random.standard_normal((height, width)))
        field = np.fft.irfft2(white / frequency**power, s=(height, width))
        return field / field.std()

    grey = noise(1.2)
    pixels = np.stack([grey + 0.35 * noise(1.3) for _ in range(3)], axis=-1)
    pixels = (pixels - pixels.mean()) / pixels.std() * 52 + 118
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _save(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return exif


def _bomb(width: int, height: int) -> bytes:
    """A PNG that claims to be large, and as far as it goes, is one."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000_000), 9)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _with_size(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims to be of another size."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


if __name__ == "__main__":
    sys.exit(main())
