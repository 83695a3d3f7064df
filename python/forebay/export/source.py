"""Finds a model's folder and reads what it says about itself, before anything heavy is loaded."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from . import trust
from .errors import ExportError

SUPPORTED_STAGES = ("Transformer", "Pooling", "StaticEmbedding", "Dense", "Normalize")

# Hugging Face writes licenses in lower case; these are the SPDX identifiers of the common ones.
_SPDX = """
    Apache-2.0 MIT BSD-2-Clause BSD-3-Clause CC-BY-4.0 CC-BY-SA-4.0 CC-BY-NC-4.0 CC0-1.0 GPL-3.0
    LGPL-3.0 AGPL-3.0 MPL-2.0 Unlicense
""".split()


TORCHVISION = "torchvision/"
# How the files of users' own programs are called.
PROGRAMS = (".pt", ".pth", ".ts")
# How a file begins that Git LFS has not fetched.
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    # As the user gave it.
    name: str
    # The model's files; for torchvision, whose models are code, a folder that need not exist.
    folder: Path
    # The name of torchvision's model, if it is one.
    torchvision: str | None = None
    # A program of the user's own, if it is one; then `folder` is the file's.
    program: Path | None = None


def find_source(name: str) -> Source:
    """A folder, a Hugging Face name, or `torchvision/NAME`."""
    if name.startswith(TORCHVISION) and not Path(name).is_dir():
        return Source(name, Path(name), name.removeprefix(TORCHVISION))
    if Path(name).is_file() and Path(name).suffix in PROGRAMS:
        return Source(name, Path(name).parent, program=Path(name))
    return Source(name, _find_folder(name))


def _find_folder(source: str) -> Path:
    """The folder itself, or the local snapshot of a Hugging Face name."""
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
            raise ExportError(
                f"{source}: not a model folder: it has neither config.json nor modules.json"
            )
        _check_files(folder)
        return folder
    if folder.exists():
        raise ExportError(
            f"{source}: this is a file; give the folder that the model is in, or a program of your own, "
            f"whose name ends in {' or '.join(PROGRAMS)}"
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source) or source.startswith("."):
        raise ExportError(
            f"{source}: no such folder; give a folder or a Hugging Face name (owner/model)"
        )
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.txt", "*.model", "*.md", "*.safetensors", *["*.py"] * trust.given()]
    unwanted = ["onnx/*", "openvino/*"]
    try:
        return Path(snapshot_download(source, allow_patterns=wanted, ignore_patterns=unwanted))
    except Exception as error:  # The hub client has no common base class for offline errors.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"{source}: no such folder, and it cannot be downloaded from Hugging Face ({reason}); "
            "check the name and the network, or give a folder with the model"
        ) from error


def _check_files(folder: Path) -> None:
    """Refuses what a download that went wrong leaves, which libraries report in riddles."""
    for pattern in ("*.safetensors", "*.bin", "*.model", "*.json", "*.txt"):
        for path in sorted(folder.rglob(pattern)):
            with path.open("rb") as file:
                begin = file.read(len(_LFS))
            if begin == _LFS:
                raise ExportError(
                    f"{path}: this is a pointer of Git LFS, not the file itself; run `git lfs pull` in "
                    "its folder, or download the model again"
                )
            if not begin and pattern in ("*.safetensors", "*.bin", "*.model"):
                raise ExportError(f"{path}: the file is empty; download the model again")


def check_stages(folder: Path) -> None:
    """Refuses unknown stages before any of their code is loaded."""
    path = folder / "modules.json"
    if not path.exists():
        return  # A plain Hugging Face encoder: sentence-transformers adds mean pooling.
    try:
        stages = [stage["type"].rsplit(".", 1)[-1] for stage in json.loads(path.read_text())]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"{path}: not a list of modules as sentence-transformers writes it"
        ) from error
    for stage in stages:
        if stage not in SUPPORTED_STAGES:
            raise ExportError(
                f"{path}: module {stage!r} is not supported; these are: {', '.join(SUPPORTED_STAGES)}"
            )
    if stages[:2] != ["Transformer", "Pooling"] and stages[:1] != ["StaticEmbedding"]:
        raise ExportError(
            f"{path}: expected a Transformer, then a Pooling module, or a StaticEmbedding, found {stages}"
        )


def read_license(folder: Path) -> str | None:
    """The SPDX license that the front matter of the folder's README.md names, if any."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    if not front:
        return None
    try:
        license_id = yaml.safe_load(front[1]).get("license")
    except (yaml.YAMLError, AttributeError) as error:
        raise ExportError(
            f"{readme}: its front matter is not valid YAML; mend it or pass --license"
        ) from error
    if not isinstance(license_id, str):
        return None
    known = {spdx.lower(): spdx for spdx in _SPDX}
    return known.get(license_id.lower(), f"LicenseRef-{license_id}")
