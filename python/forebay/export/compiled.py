"""Compiles a module to native code by PyTorch's AOTInductor, and proves that it computes the same.

In: a `Candidate`. Out: `.pt2` files beside the TorchScript program, for devices like this machine's. Each
holds the weights once more, and is code that whoever loads it runs with their own rights.
"""

import contextlib
import copy
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from .candidate import Candidate, Tokens
from .errors import ExportError
from .precision import HALVES
from .program import call, compare, relative_difference
from .reasons import place_of, reason_of
from .traceable import traceable

# Two rows would be taken for as many as there ever are of something else of that size; lengths, too.
ROWS, LENGTH = 3, 6
# As many threads as the caller is allowed, not as many as this machine has.
SETTINGS = {"cpp.dynamic_threads": True, "cpp.threads": -1}
# By PyTorch's name of a CPU's vectors: their width in bits, and what GCC and Clang call CPUs that have them.
# PyTorch itself would take all that this machine has, and call it by the vectors alone.
VECTORS = {"AVX2": (256, "x86-64-v3"), "AVX512": (512, "x86-64-v4")}
# How many times as far from 32-bit floats as the TorchScript program a half precision may be: sums are rounded
# in another order.
HALF_FACTOR = 4


@dataclass(frozen=True)
class Compiled:
    """A `[[runtime.compiled]]` of a package."""

    program: str
    # What the code needs: the vectors of a CPU, or the compute capability of a GPU.
    architecture: str
    precision: str
    # The release of PyTorch, without which the code does not run.
    torch: str


@dataclass(frozen=True)
class Target:
    """What to compile for."""

    # cpu or cuda.
    device: str
    precision: str

    def kind(self) -> torch.dtype:
        """PyTorch's name of the precision."""
        return HALVES.get(self.precision, torch.float32)

    def arguments(self, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The same as the program takes them."""
        return tuple(
            value.to(self.device, self.kind() if value.is_floating_point() else value.dtype)
            for value in arguments
        )

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A copy of it, as it is to be compiled."""
        return copy.deepcopy(module).to(self.device, self.kind())


def check_compiler() -> None:
    """Refuses machines that nothing can be compiled on, before anything takes time."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ExportError(
            f"--compile needs a C++ compiler, and there is no {compiler}: install one (apt install g++), name "
            "it by the variable CXX, or leave --compile out"
        )
    if platform.machine() != "x86_64" or _vectors() not in VECTORS:
        raise ExportError(
            f"--compile is for CPUs with AVX2 or AVX-512, and this one has {_vectors()}; leave it out"
        )


def targets(held: dict[str, float]) -> list[Target]:
    """What this machine compiles for, of a program that holds these half precisions: its CPU in 32 bits, as
    half ones are for few CPUs; its GPU, if it has one, in all."""
    found = [Target("cpu", "fp32")]
    if torch.cuda.is_available():
        found += [Target("cuda", precision) for precision in ("fp32", *held)]
    return found


def write_compiled(
    candidate: Candidate, package: Path, target: Target, determinism: str, held: dict[str, float]
) -> tuple[Compiled, float]:
    """Compiles for a device like this machine's; what it is, and the largest difference seen."""
    if isinstance(candidate.module, torch.jit.ScriptModule):
        raise ExportError(
            "a TorchScript program cannot be compiled: --compile needs the module that it was made of, saved "
            "whole by torch.save; or leave it out"
        )
    architecture = _architecture(target.device)
    about = Compiled(
        program=f"model-{architecture}-{target.precision}.pt2",
        architecture=architecture,
        precision=target.precision,
        torch=torch.__version__.partition("+")[0],
    )
    path = package / about.program
    _compile(candidate, target, path)
    program = _loaded(path, target)
    if target.precision in held:
        return about, _compare_halves(candidate, program, held[target.precision])
    return about, compare(candidate, program, determinism)


def _vectors() -> str:
    return torch.backends.cpu.get_cpu_capability()


def _architecture(device: str) -> str:
    """Of this machine's devices of that kind."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"
    return f"cpu-{_vectors().lower()}"


def _compile(candidate: Candidate, target: Target, path: Path) -> None:
    example = target.arguments(candidate.transform.example(ROWS, LENGTH))
    varies = _varies(candidate, example)
    with tempfile.TemporaryDirectory() as cache, contextlib.ExitStack() as stack:
        stack.enter_context(torch._inductor.utils.fresh_cache(dir=cache))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.no_grad())
        stack.enter_context(traceable())
        stack.enter_context(_of_all_such_cpus())
        warnings.simplefilter("ignore")
        try:
            module = target.module(candidate.module)
            graph = torch.export.export(module, example, dynamic_shapes=varies, strict=False)
            _check_varies(graph, varies)
            torch._inductor.aoti_compile_and_package(
                graph, package_path=str(path), inductor_configs=SETTINGS
            )
        except ExportError:
            raise
        except Exception as error:  # Whatever the model's own code, or a compiler, raises.
            where = place_of(error, candidate.module)
            raise ExportError(
                f"the model cannot be compiled for {target.device} in {target.precision}: it fails{where}: "
                f"{reason_of(error)}; leave --compile out"
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


def _check_varies(graph: torch.export.ExportedProgram, varies: tuple[dict[int, object], ...]) -> None:
    """Refuses code that took the example's rows or length for those of all batches: it would not look."""
    given = set(graph.graph_signature.user_inputs)
    inputs = [node for node in graph.graph.find_nodes(op="placeholder") if node.name in given]
    for node, sides in zip(inputs, varies, strict=True):
        sizes = node.meta["val"].shape
        varying = [side for side, varies in sides.items() if varies is torch.export.Dim.AUTO]
        for side in (side for side in varying if is_concrete_int(sizes[side])):
            what = ("rows", "tokens")[side]
            raise ExportError(
                f"the model cannot be compiled: it takes {sizes[side]} {what} of an example for those of all "
                "batches; leave --compile out"
            )


@contextlib.contextmanager
def _of_all_such_cpus() -> Iterator[None]:
    """Code for every CPU that has this one's vectors, not for this model of CPU alone, that needs no more
    libraries than it calls."""
    from torch._inductor import cpp_builder, cpu_vec_isa

    bits, model = VECTORS[_vectors()]
    kinds = {256: cpu_vec_isa.VecAVX2, 512: cpu_vec_isa.VecAVX512}
    flags = cpp_builder._get_optimization_cflags
    of_torch = cpp_builder._get_torch_related_args

    def portable(*arguments: object, **options: object) -> tuple[list[str], list[str]]:
        compile_flags, link_flags = flags(*arguments, **options)
        at = compile_flags.index("march=native")
        compile_flags[at] = f"march={model}"
        return compile_flags, link_flags

    def needed(*arguments: object, **options: object) -> tuple[list[str], list[str], list[str]]:
        headers, folders, libraries = of_torch(*arguments, **options)
        # libtorch.so only needs the others, that of CUDA too, and who runs the code has those that it calls.
        return headers, folders, [library for library in libraries if library != "torch"]

    with (
        mock.patch.object(cpp_builder, "_get_optimization_cflags", portable),
        mock.patch.object(cpp_builder, "_get_torch_related_args", needed),
        mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: [kinds[bits]()]),
    ):
        yield


def _loaded(path: Path, target: Target) -> Callable[..., object]:
    """The program as a module: arguments and results are 32-bit floats on the CPU. Compiled programs give lists
    where modules give tuples."""
    program = torch._inductor.aoti_load_package(str(path))

    def run(*arguments: torch.Tensor) -> object:
        outputs = program(*target.arguments(arguments))
        outputs = outputs if isinstance(outputs, list | tuple) else (outputs,)
        kind = target.kind()
        return tuple(o.to("cpu", torch.float32 if o.dtype == kind else o.dtype) for o in outputs)

    return run


def _compare_halves(candidate: Candidate, program: Callable[..., object], off: float) -> float:
    """The largest difference from 32-bit floats; an error if it is far more than that of TorchScript."""
    worst = 0.0
    for rows in (1, ROWS + 4):
        for length in (length for length in candidate.transform.lengths() if length <= 64):
            arguments = candidate.transform.example(rows, length)
            where = f"{rows} rows of length {length}"
            with traceable():
                expected = call(candidate.module, arguments, where)
            found = call(program, arguments, where)
            pairs = (pair for pair in zip(found, expected, strict=True) if pair[1].is_floating_point())
            worst = max(worst, *(relative_difference(a.double(), b.double()) for a, b in pairs))
    if not worst <= HALF_FACTOR * off:
        raise ExportError(
            f"the compiled program differs from 32-bit floats by {worst:.2g}, TorchScript by {off:.2g}; leave "
            "--compile out"
        )
    return worst
