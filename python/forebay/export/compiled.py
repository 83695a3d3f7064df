"""Compiles a module to native code by PyTorch's AOTInductor, and proves that it computes the same.

In: a `Candidate`. Out: a `.pt2` file beside the TorchScript program, for devices like this machine's. It
holds the weights once more, and is code that whoever loads it runs with their own rights.
"""

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .candidate import Candidate, Tokens
from .errors import ExportError
from .program import compare
from .reasons import place_of, reason_of
from .traceable import traceable

# Two rows would be taken for as many as there ever are of something else of that size; lengths, too.
ROWS, LENGTH = 3, 6
# As many threads as the caller is allowed, not as many as this machine has. One file, not one per kernel.
SETTINGS = {"cpp.dynamic_threads": True, "cpp.threads": -1}


@dataclass(frozen=True)
class Compiled:
    """A `[[compiled]]` of a package."""

    file: str
    # cpu or cuda.
    device: str
    # What the code needs: of a CPU its vectors, as PyTorch names them; of a GPU its compute capability.
    architecture: str
    precision: str
    # The release of PyTorch, without which the code does not run.
    torch: str


def write_compiled(candidate: Candidate, package: Path, determinism: str) -> tuple[Compiled, float]:
    """Compiles for the CPU of this machine, in 32 bits; what it is, and the largest difference seen."""
    about = Compiled(
        file="model-cpu-fp32.pt2",
        device="cpu",
        architecture=_vectors(),
        precision="fp32",
        torch=torch.__version__.partition("+")[0],
    )
    path = package / about.file
    _compile(candidate, path)
    program = torch._inductor.aoti_load_package(str(path))
    return about, compare(candidate, _as_tuple(program), determinism)


def _vectors() -> str:
    """The vectors that PyTorch compiles for on this CPU, for example avx2."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return str(pick_vec_isa()).lower().replace(" ", "_")


def _compile(candidate: Candidate, path: Path) -> None:
    example = candidate.transform.example(ROWS, LENGTH)
    varies = _varies(candidate, example)
    with tempfile.TemporaryDirectory() as cache, contextlib.ExitStack() as stack:
        stack.enter_context(torch._inductor.utils.fresh_cache(dir=cache))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.no_grad())
        stack.enter_context(traceable())
        warnings.simplefilter("ignore")
        try:
            graph = torch.export.export(candidate.module, example, dynamic_shapes=varies, strict=False)
            torch._inductor.aoti_compile_and_package(
                graph, package_path=str(path), inductor_configs=SETTINGS
            )
        except Exception as error:  # Whatever the model's own code, or a compiler, raises.
            where = place_of(error, candidate.module)
            raise ExportError(
                f"the model cannot be compiled: it fails{where}: {reason_of(error)}; leave --compile out"
            ) from error


def _varies(candidate: Candidate, example: tuple[torch.Tensor, ...]) -> tuple[dict[int, object], ...]:
    """By argument, the sides that differ from batch to batch: rows, and tokens."""
    has_lengths = isinstance(candidate.transform, Tokens)
    sides = {0, 1} if has_lengths else {0}
    dim = torch.export.Dim
    return tuple(
        {side: dim.AUTO if side in sides else dim.STATIC for side in range(argument.dim())}
        for argument in example
    )


def _as_tuple(program: Callable[..., object]) -> Callable[..., object]:
    """Compiled programs give lists where modules give tuples."""

    def run(*arguments: torch.Tensor) -> object:
        outputs = program(*arguments)
        return tuple(outputs) if isinstance(outputs, list) else outputs

    return run
