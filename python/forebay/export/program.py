"""Traces a module to TorchScript that runs on any device, and proves that it computes the same.

In: a `Candidate`. Out: a file. A trace bakes in the device it ran on; such constants are replaced
by the device of the arguments, and none may remain. Must not know about tokenizers or packages.
"""

import contextlib
import itertools
import io
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.jit._recursive import wrap_cpp_module

from . import unmasked
from .candidate import Candidate
from .errors import ExportError
from .halves import Unlike, follow_format, halved
from .kernels import lay_out_kernels
from .reasons import place_of, reason_of
from .traceable import traceable

# As `relative_difference` counts: logits of 20 have no digit at 1e-5 of which one could be sure.
TOLERANCE = 1e-5
# Above, a program may be so many times as far from what the model gives in 64 bits as the model itself, up to a
# bound: convolutions that took on a normalization round elsewhere, and it depends on the CPU how.
ROUNDING, ROUNDED_MAX = 8, 1e-4
ROWS_TESTED = (1, 2, 7)
# Several rows are tested up to this padded size; a longer row is tested alone, once for minutes.
TOKENS_TESTED = 4096
# Two traces of one model are compared up to this length, before all else.
LENGTH_COMPARED = 64
# What makes tensors of numbers, on the CPU if no device is named.
_MAKERS = tuple(f"aten::{name}" for name in ("arange", "empty", "eye", "full", "linspace", "ones", "zeros"))
# Of the buffers that a program's constants become.
_KEPT = "kept_"
# How PyTorch says that a result's shape depends on values, which a device of shapes does not have.
_DEPENDS_ON_VALUES = ("Tensor.item() cannot be called on meta tensors", "nonzero() raises")


def write_program(candidate: Candidate, path: Path) -> None:
    """Traces the candidate's module and saves it at `path`, with a second method if that gains."""
    if isinstance(candidate.module, torch.jit.ScriptModule):
        _save(_copy(candidate.module), path)
        if hasattr(candidate.module, unmasked.METHOD) and not unmasked.holds(candidate, path):
            raise ExportError(
                f"the program's method {unmasked.METHOD} does not give what forward gives for rows without "
                "padding, or does not spare attention a mask; leave it out, or mend it (docs/model-packages.md)"
            )
        return
    if unmasked.is_possible(candidate):
        with contextlib.suppress(ExportError), unmasked.added(candidate):
            _save(_folded(_trace_of_any_format(candidate)), path)
            if unmasked.holds(candidate, path):
                return
    _save(_folded(_trace_of_any_format(candidate)), path)


def _save(traced: torch.jit.ScriptModule, path: Path) -> None:
    """Without what ties a trace to the device and the settings that it was made with."""
    lay_out_kernels(traced)
    for module, graph in _methods(traced):
        _replace_device_constants(graph)
        _keep_tensor_constants(module, graph)
        _free_convolutions(graph)
    try:
        traced.save(str(path))
    except RuntimeError as error:
        raise ExportError(f"the model cannot be saved as TorchScript: {reason_of(error)}") from error


def _copy(program: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The same program, to be changed."""
    buffer = io.BytesIO()
    torch.jit.save(program, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer, map_location="cpu").eval()


def _trace_of_any_format(candidate: Candidate) -> torch.jit.ScriptModule:
    """One that computes in the format of its weights if that can be had, else one of 32 bits."""
    whole = _trace(candidate, torch.float32)
    for stored_only in (True, False):
        try:
            with halved(candidate.module, stored_only=stored_only) as kind:
                half = _trace(candidate, kind)
            is_other = follow_format(half, whole, candidate.module, stored_only=stored_only)
        except (ExportError, Unlike):
            continue
        if not is_other:
            break
        if _is_same(candidate, half, whole):
            return half
    return whole


def _is_same(candidate: Candidate, one: torch.jit.ScriptModule, other: torch.jit.ScriptModule) -> bool:
    """Whether two programs give the same."""
    for rows, length in ((3, 6), (2, candidate.transform.lengths()[-1])):
        arguments = candidate.transform.example(rows, min(length, LENGTH_COMPARED))
        try:
            found, expected = (call(program, arguments, "an example") for program in (one, other))
            _difference(found, expected, "an example")
        except ExportError:
            return False
    return True


def _trace(candidate: Candidate, kind: torch.dtype) -> torch.jit.ScriptModule:
    example = candidate.transform.example(rows=3, length=6)
    example = tuple(value.to(kind) if value.is_floating_point() else value for value in example)
    with warnings.catch_warnings(), torch.no_grad(), traceable(), _plain_names(candidate.module):
        # Warnings of baked-in values: `test_program` is what decides.
        warnings.simplefilter("ignore")
        try:
            methods = {"forward": example}
            if hasattr(candidate.module, unmasked.METHOD):
                methods[unmasked.METHOD] = unmasked.others(candidate, example)
            return torch.jit.trace_module(candidate.module, methods, check_trace=False)
        except Exception as error:  # Whatever the model's own code raises.
            raise _untraceable(candidate, error) from error


def _folded(traced: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    with torch.no_grad():
        return _fold_normalization(traced)


def _untraceable(candidate: Candidate, error: Exception) -> ExportError:
    where = place_of(error, candidate.module)
    return ExportError(f"the model cannot be traced to TorchScript: it fails{where}: {reason_of(error)}")


@contextlib.contextmanager
def _plain_names(module: torch.nn.Module) -> Iterator[None]:
    """Programs name their classes by the files these are from. Code that comes with a model is in a folder
    that is named by a hash, which TorchScript cannot read again."""
    kinds = {type(part) for part in module.modules()}
    odd = [kind for kind in kinds if not all(map(str.isidentifier, kind.__module__.split(".")))]
    names = {kind: kind.__module__ for kind in odd}
    try:
        for kind in odd:
            kind.__module__ = re.sub(r"\W|\.(?=\d)", "_", kind.__module__)
        yield
    finally:
        for kind, name in names.items():
            kind.__module__ = name


def test_program(candidate: Candidate, path: Path, determinism: str) -> float:
    """Reloads the program, compares it with the module; returns the largest difference seen."""
    program = torch.jit.load(str(path), map_location="cpu")
    baked = baked_constants(program)
    if baked:
        raise ExportError(f"the program holds constants tied to one device: {'; '.join(baked)}")
    check_moves(candidate, path)
    return compare(candidate, program, determinism)


def compare(
    candidate: Candidate, program: Callable[..., object], determinism: str
) -> float:
    """The largest difference between a program and the module it was made of; an error if it is more than
    rounding."""
    transform, worst = candidate.transform, 0.0
    for rows in ROWS_TESTED:
        for length in transform.lengths():
            if rows > 1 and rows * length > TOKENS_TESTED:
                continue
            arguments = transform.example(rows, length)
            where = f"{rows} rows of length {length}"
            with traceable():
                expected = call(candidate.module, arguments, where)
            found = call(program, arguments, where)
            worst = max(worst, _difference(found, expected, where, lambda: _exact(candidate, arguments)))
            if rows == 1 or determinism == "volatile":
                continue  # The same batch again; or one that draws other numbers.
            # The first row has no padding; more of it must not change the others.
            single = call(program, transform.last_alone(arguments), where)
            # Lists of tokens are longer by the padding.
            last = [f[-1:][tuple(map(slice, s.shape))] for f, s in zip(found, single, strict=True)]
            doubt = (
                f"the last of {where} and the same row alone: what it gives depends on how far rows are "
                f"padded, so that equal rows of a query would differ{transform.padding_doubt}"
            )
            worst = max(worst, _difference(last, single, doubt))
    return worst


def check_moves(candidate: Candidate, path: Path) -> None:
    """Runs the program on PyTorch's "meta" device, which computes shapes only but, as a GPU does,
    refuses tensors of another device: a check that needs no GPU."""
    program = torch.jit.load(str(path), map_location="cpu")
    for module in program.modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            module._c.setattr(name, tensor.detach().to("meta"))
        for name, tensor in _kept(module):
            module._c.setattr(name, tensor.detach().to("meta"))
    arguments = [argument.to("meta") for argument in candidate.transform.example(2, 5)]
    try:
        with torch.no_grad():
            program(*arguments)
            if hasattr(program, unmasked.METHOD):
                getattr(program, unmasked.METHOD)(*unmasked.others(candidate, tuple(arguments)))
    except (RuntimeError, NotImplementedError) as error:
        if any(sign in str(error) for sign in _DEPENDS_ON_VALUES):
            return  # Shapes alone do not tell what comes next; so far, all was on one device.
        raise ExportError(f"the program runs on the CPU only: {reason_of(error)}") from error


def baked_constants(program: torch.jit.ScriptModule) -> list[str]:
    """What ties the program to one device: device constants, and tensors other than scalars."""
    found = []
    for graph in graphs(program):
        for node in graph.findAllNodes("prim::Constant", recurse=True):
            if _is_device(node):
                found.append(f"device {node.s('value')}")
            elif _is_tensor(node):
                found.append(f"tensor of shape {list(node.t('value').shape)}")
    return found


def graphs(program: torch.jit.ScriptModule) -> list[torch.Graph]:
    """The graphs of the module and of all modules below it: one for each time it is called."""
    return [graph for _, graph in _methods(program)]


def _methods(program: torch.jit.ScriptModule) -> list[tuple[torch.jit.ScriptModule, torch.Graph]]:
    return [
        (module, module._c._get_method(name).graph)
        for module in program.modules()
        for name in module._c._method_names()
    ]


def _fold_normalization(traced: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Convolutions take on what a batch normalization behind them does, which saves a pass over the
    widest tensors, and as much memory again.

    libtorch's pass for it knows convolutions whose padding is given in numbers, and takes it that
    modules with weights are called once: other programs stay as they are.
    """
    kinds = {node.kind() for graph in graphs(traced) for node in graph.nodes()}
    called = (len(module._c._method_names()) for module in traced.modules() if hasattr(module, "weight"))
    is_called_twice = any(times > 1 for times in called)
    if "aten::batch_norm" not in kinds or "aten::_convolution_mode" in kinds or is_called_twice:
        return traced
    return wrap_cpp_module(torch._C._jit_pass_fold_convbn(traced._c))


def call(
    module: Callable[..., object], arguments: tuple[torch.Tensor, ...], where: str, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    """The outputs of a module or program, always as a tuple; random numbers are the same for a seed."""
    torch.manual_seed(seed)
    try:
        with torch.no_grad():
            outputs = module(*arguments)
    except RuntimeError as error:
        raise ExportError(f"the program fails on {where}: {reason_of(error)}") from error
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _difference(
    found: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
    where: str,
    exact: Callable[[], tuple[torch.Tensor, ...]] = tuple,
) -> float:
    """The largest difference, if the shapes agree and it is within the tolerance, or is rounding by what `exact`
    gives."""
    worst = 0.0
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one.shape != other.shape:
            raise ExportError(
                f"the program returns {list(one.shape)} instead of {list(other.shape)} for {where}"
            )
        if one.numel() == 0:
            continue
        difference = relative_difference(one.double(), other.double())
        # Also when it is not a number.
        if not difference <= TOLERANCE and not _is_rounding(one, other, exact()[at : at + 1]):
            raise ExportError(
                f"the program differs from the model by {difference:.2g} for {where}; the model cannot "
                "be exported"
            )
        worst = max(worst, difference)
    return worst


def _is_rounding(found: torch.Tensor, expected: torch.Tensor, exact: tuple[torch.Tensor, ...]) -> bool:
    """Whether a program is hardly farther from the exact result than the model is."""
    if not exact or exact[0].shape != expected.shape:
        return False
    own, other = (relative_difference(value.double(), exact[0]) for value in (expected, found))
    return other <= min(ROUNDING * own, ROUNDED_MAX)


def _exact(candidate: Candidate, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What the model gives if it computes in 64 bits; nothing if it cannot."""
    wide = tuple(value.double() if value.is_floating_point() else value for value in arguments)
    try:
        with traceable(), _widened(candidate.module):
            outputs = call(candidate.module, wide, "an example")
    except Exception:  # Whatever the model's own code raises in a format that it was not written for.
        return ()
    return tuple(output.double() for output in outputs)


@contextlib.contextmanager
def _widened(module: torch.nn.Module) -> Iterator[None]:
    """While a module's numbers are of 64 bits. In place: what calls it may hold its parts by other ways."""
    kept = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
    try:
        for tensor, data in kept:
            if data.is_floating_point():
                tensor.data = data.double()
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference: absolute up to 1, above relative to the largest value of its vector, of
    which smaller ones have the rounding."""
    scale = expected.abs()
    if scale.dim() > 1:
        scale = scale.amax(dim=-1, keepdim=True)
    return ((found - expected).abs() / scale.clamp(min=1)).max().item()


def _is_device(node: torch.Node) -> bool:
    return node.output().type().kind() == "DeviceObjType" and node.hasAttribute("value")


def _replace_device_constants(graph: torch.Graph) -> None:
    """Makes every constant device in `graph`, and the one that is meant where none is named, the device of
    the graph's first tensor argument."""
    constants = [
        node for node in graph.findAllNodes("prim::Constant", recurse=True) if _is_device(node)
    ]
    makers = [node for kind in _MAKERS for node in graph.findAllNodes(kind, recurse=True)]
    if not constants and not makers:
        return
    tensors = [
        value for value in graph.inputs() if value.type().isSubtypeOf(torch._C.TensorType.get())
    ]
    # A trace passes sizes as tensors of no dimension, which stay on the CPU.
    tensors = [value for value in tensors if value.type().dim() != 0] or tensors
    if not tensors and not constants:
        return
    if not tensors:
        raise ExportError("the program fixes a device where it has no tensor argument to follow")
    device = graph.create("prim::device", [tensors[0]], 1)
    device.output().setType(torch._C.DeviceObjType.get())
    graph.prependNode(device)
    for node in constants:
        node.output().replaceAllUsesWith(device.output())
        node.destroy()
    for node in makers:
        names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
        at = names.index("device")
        if list(node.inputs())[at].node().mustBeNone():
            node.replaceInput(at, device.output())


def _keep_tensor_constants(module: torch.jit.ScriptModule, graph: torch.Graph) -> None:
    """Makes the tensors that `graph` holds attributes of its module, which are loaded to its device."""
    for node in list(graph.findAllNodes("prim::Constant", recurse=True)):
        if not _is_tensor(node):
            continue
        tensor = node.t("value")
        name = f"{_KEPT}{len(_kept(module))}"
        module._c._register_attribute(name, torch._C.TensorType.get(), tensor)
        found = graph.create("prim::GetAttr", [next(iter(graph.inputs()))], 1)
        found.s_("name", name)
        found.output().setType(torch._C.TensorType.get())
        found.insertBefore(node)
        node.output().replaceAllUsesWith(found.output())
        node.destroy()


def _kept(module: torch.jit.ScriptModule) -> list[tuple[str, torch.Tensor]]:
    """These attributes. PyTorch does not count them among the module's buffers."""
    numbered = map(f"{_KEPT}{{}}".format, itertools.count())
    names = itertools.takewhile(module._c.hasattr, numbered)
    return [(name, module._c.getattr(name)) for name in names]


def _is_tensor(node: torch.Node) -> bool:
    """Whether a constant is a tensor of any shape; numbers go to any device."""
    held = node.hasAttribute("value") and node.kindOf("value") == "t"
    return held and node.t("value").dim() > 0


def _free_convolutions(graph: torch.Graph) -> None:
    """Makes convolutions follow the settings of the process that runs them, not of this one.

    A trace records `_convolution`, whose last four arguments are this process's settings of cuDNN;
    `convolution` is the same without them.
    """
    for node in graph.findAllNodes("aten::_convolution", recurse=True):
        plain = graph.create("aten::convolution", list(node.inputs())[:9], 1)
        plain.output().setType(node.output().type())
        plain.insertBefore(node)
        node.output().replaceAllUsesWith(plain.output())
        node.destroy()
