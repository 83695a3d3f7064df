"""Exports a module to ONNX, and proves that ONNX Runtime computes the same with it.

In: a `Candidate`. Out: a file. The program holds the whole model, pooling and scores too, so that its
results are the package's outputs. PyTorch's exporter by traces is used, which needs no other package than
`onnx`, and records what `torch.jit.trace` records.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from .candidate import Candidate, Tokens
from .errors import ExportError
from .program import compare
from .reasons import place_of, reason_of
from .traceable import traceable

# What ONNX Runtime 1.24 knows, and PyTorch's exporter writes.
OPSET = 18
# What one file of protobuf may hold.
BYTES_MAX = 2**31 - 1
# The result that says which values of `[rows, longest]` ones the lists of a row hold.
KEPT = "kept"


class OnnxProgram:
    """A file, as a program: tensors in, a tuple of tensors out."""

    def __init__(self, path: Path, arguments: tuple[str, ...]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # Errors only.
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        self.arguments = arguments
        self.taken = {one.name for one in self.session.get_inputs()}

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, for what the program takes of these values."""
        named = zip(self.arguments, values, strict=True)
        inputs = {name: value.numpy() for name, value in named if name in self.taken}
        try:
            results = self.session.run(None, inputs)
        except Exception as error:  # ONNX Runtime's have no common base class of their own.
            raise RuntimeError(reason_of(error)) from error
        return tuple(map(torch.from_numpy, results))


def check_installed() -> None:
    """Refuses to begin without what this needs."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"--format onnx needs the package {error.name!r}, which is not installed: "
            "pip install 'forebay[export-onnx]'"
        ) from error


def arguments_of(candidate: Candidate) -> tuple[str, ...]:
    """The names of what the program takes: of the transform's arguments, or of the columns."""
    transform = candidate.transform
    if isinstance(transform, Tokens):
        return transform.arguments
    return tuple(column.name for column in candidate.inputs)


def write_onnx(candidate: Candidate, path: Path) -> None:
    """Exports the candidate's module to `path`."""
    weights = [*candidate.module.parameters(), *candidate.module.buffers()]
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    if size > BYTES_MAX:
        raise ExportError(
            f"the weights take {size / 2**30:.1f} GiB, and a program in ONNX format holds 2 GiB at the "
            "most; leave out --format onnx"
        )
    arguments, results = arguments_of(candidate), _results(candidate)
    example = candidate.transform.example(rows=3, length=6)
    with warnings.catch_warnings(), torch.no_grad(), traceable():
        # Warnings of baked-in values, and of another exporter: `test_onnx` is what decides.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                candidate.module,
                example,
                str(path),
                input_names=list(arguments),
                output_names=list(results),
                dynamic_axes={**_axes(candidate, arguments, True), **_axes(candidate, results, False)},
                opset_version=OPSET,
                dynamo=False,
            )
        except Exception as error:  # Whatever the model's own code raises.
            where = place_of(error, candidate.module)
            raise ExportError(
                f"the model cannot be exported to ONNX: it fails{where}: {reason_of(error)}; leave out "
                "--format onnx"
            ) from error


def test_onnx(candidate: Candidate, path: Path, determinism: str) -> float:
    """Reloads the program, compares it with the module; returns the largest difference seen."""
    return compare(candidate, load(candidate, path), determinism)


def load(candidate: Candidate, path: Path) -> OnnxProgram:
    """As ONNX Runtime reads it."""
    try:
        return OnnxProgram(path, arguments_of(candidate))
    except Exception as error:  # As above.
        raise ExportError(
            f"ONNX Runtime cannot load the program: {reason_of(error)}; leave out --format onnx"
        ) from error


def _has_lists(candidate: Candidate) -> bool:
    return any(column.type.endswith("[]") for column in candidate.outputs)


def _results(candidate: Candidate) -> tuple[str, ...]:
    """The names of the results. One that is also an argument's would be the argument."""
    kept = (KEPT,) * _has_lists(candidate)
    names = (*(name for column in candidate.outputs for name in column.results()), *kept)
    taken = arguments_of(candidate)
    return tuple(f"{name}_result" if name in taken else name for name in names)


def _axes(candidate: Candidate, names: tuple[str, ...], is_input: bool) -> Mapping[str, dict[int, str]]:
    """Which dimensions are of any size: the rows, and the tokens."""
    has_tokens = isinstance(candidate.transform, Tokens) if is_input else _has_lists(candidate)
    side = "tokens" if is_input else "listed"
    return {name: {0: "rows", **({1: side} if has_tokens else {})} for name in names}
