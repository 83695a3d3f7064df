"""Makes the packages that Rust tests load: tiny models of every architecture and task.

    tools/python -m forebay.export.fixtures OUTPUT

Writes OUTPUT/onnx (onnx_fixtures.py, onnx_folders.py), and OUTPUT/<name>/package, and beside it
reference.json: columns of inputs, and the columns of outputs that the model's own library gives for them; and OUTPUT/resnet18 with 500 images and their
labels (resnet.py); and OUTPUT/operations.json: how much some of them compute. Seeded: the same bytes each time,
but of OUTPUT/compiled, which holds native code for this machine's CPUs.
"""

import json
import os
import shutil
import sys
import tempfile
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # The models are tiny; more threads only wait.

import torch  # noqa: E402
import transformers  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from . import command  # noqa: E402
from . import onnx_fixtures  # noqa: E402
from . import onnx_folders  # noqa: E402
from . import resnet  # noqa: E402
from .reference import embed  # noqa: E402
from .texts import MIXED  # noqa: E402
from .tiny import ARCHITECTURES, build_model  # noqa: E402
from .tiny_lists import LISTS  # noqa: E402
from .tiny_tasks import MODELS, Columns, Tiny  # noqa: E402


# Of linear layers, attention and convolutions, and of one whose attention has windows.
COUNTED = ("bert", "roberta", "modernbert", "images-resnet", "images-vit")


def main() -> int:
    """Runs the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print("usage: fixtures.py OUTPUT", file=sys.stderr)
        return 2
    transformers.utils.logging.disable_progress_bar()
    output = Path(sys.argv[1])
    encoders = {name: _encoder(name) for name in ARCHITECTURES}
    compiled = {"compiled": replace(_encoder("bert"), arguments=("--compile",))}
    for name, model in {**encoders, **compiled, **MODELS, **LISTS}.items():
        folder = output / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            source = Path(work)
            model.build(source)
            arguments = ["--source", work, "--output", str(folder / "package")]
            about = ["--name", f"tiny-{name}", "--license", "CC0-1.0", "--origin", "random weights"]
            code = command.main([*arguments, *about, *model.arguments])
            if code != 0:
                return code
            outputs = model.expected(source, model.inputs)
        reference = json.dumps({"inputs": model.inputs, "outputs": outputs}, ensure_ascii=False)
        (folder / "reference.json").write_text(reference, encoding="utf-8")
    operations = {name: _operations(output / name, (2, 9, 32)) for name in COUNTED}
    (output / "operations.json").write_text(json.dumps(operations), encoding="utf-8")
    onnx_fixtures.make(output / "onnx")
    onnx_folders.make(output / "onnx")
    return resnet.make(output / "resnet18")


def _operations(folder: Path, lengths: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Rows, tokens of each (1 if there are none), and the operations by PyTorch's own counter."""
    package = folder / "package"
    program = torch.jit.load(package / "model.pt")
    about = tomllib.loads((package / "model.toml").read_text())
    side = [3, about["transform"].get("crop", 32), about["transform"].get("crop", 32)]
    is_text = about["transform"]["kind"] == "tokenize"
    counted = []
    for rows, length in product((1, 3), lengths if is_text else (1,)):
        ids = torch.full((rows, length), 5)
        arguments = [ids, torch.ones_like(ids)] if is_text else [torch.zeros(rows, *side)]
        # It does not know the attention in one step of CPUs.
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            program(*arguments)
        counted.append((rows, length, counter.get_total_flops()))
    return counted


def _encoder(architecture: str) -> Tiny:
    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            build_model(architecture, Path(work))
            shutil.copytree(Path(work) / "model", folder, dirs_exist_ok=True)

    def expected(folder: Path, inputs: Columns) -> Columns:
        return {"embedding": embed(folder, inputs["text"]).tolist()}

    return Tiny(build, {"text": list(MIXED)}, expected)


if __name__ == "__main__":
    sys.exit(main())
