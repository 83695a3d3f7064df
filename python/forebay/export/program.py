"""Traces a module to TorchScript that runs on any device, and proves that it computes the same.

In: a `Candidate`. Out: a file. A trace bakes in the device it ran on; such constants are replaced
by the device of the arguments, and none may remain. Must not know about tokenizers or packages.
"""

import warnings
from pathlib import Path

import torch
from torch.jit._recursive import wrap_cpp_module

from .candidate import Candidate
from .errors import ExportError

# Absolute up to 1, relative above: logits of 20 have no digit at 1e-5 of which one could be sure.
TOLERANCE = 1e-5
ROWS_TESTED = (1, 2, 7)
# Several rows are tested up to this padded size; a longer row is tested alone, once for minutes.
TOKENS_TESTED = 4096


def write_program(candidate: Candidate, path: Path) -> None:
    """Traces the candidate's module and saves it at `path`."""
    example = candidate.transform.example(rows=3, length=6)
    with warnings.catch_warnings(), torch.no_grad():
        # Warnings of baked-in values: `test_program` is what decides.
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(candidate.module, example, check_trace=False)
            traced = _fold_normalization(traced)
        except Exception as error:  # Whatever the model's own code raises.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportError(f"the model cannot be traced to TorchScript: {reason}") from error
    _lay_out_kernels(traced)
    for graph in graphs(traced):
        _replace_device_constants(graph)
        _free_convolutions(graph)
    traced.save(str(path))


def test_program(candidate: Candidate, path: Path, determinism: str) -> float:
    """Reloads the program, compares it with the module; returns the largest difference seen."""
    program = torch.jit.load(str(path), map_location="cpu")
    baked = baked_constants(program)
    if baked:
        raise ExportError(f"the program holds constants tied to one device: {'; '.join(baked)}")
    check_moves(candidate, path)
    transform, worst = candidate.transform, 0.0
    for rows in ROWS_TESTED:
        for length in transform.lengths():
            if rows > 1 and rows * length > TOKENS_TESTED:
                continue
            arguments = transform.example(rows, length)
            where = f"{rows} rows of length {length}"
            expected = _call(candidate.module, arguments, where)
            found = _call(program, arguments, where)
            worst = max(worst, _difference(found, expected, where))
            if rows == 1 or determinism == "volatile":
                continue  # The same batch again; or one that draws other numbers.
            # The first row has no padding; more of it must not change the others.
            single = _call(program, transform.last_alone(arguments), where)
            # Lists of tokens are longer by the padding.
            last = [f[-1:][tuple(map(slice, s.shape))] for f, s in zip(found, single, strict=True)]
            doubt = f"the last of {where}, alone{transform.padding_doubt}"
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
    arguments = [argument.to("meta") for argument in candidate.transform.example(2, 5)]
    try:
        with torch.no_grad():
            program(*arguments)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ExportError(f"the program runs on the CPU only: {reason}") from error


def baked_constants(program: torch.jit.ScriptModule) -> list[str]:
    """What ties the program to one device: device constants, and tensors other than scalars."""
    found = []
    for graph in graphs(program):
        for node in graph.findAllNodes("prim::Constant", recurse=True):
            if _is_device(node):
                found.append(f"device {node.s('value')}")
            elif (
                node.hasAttribute("value")
                and node.kindOf("value") == "t"
                and node.t("value").dim() > 0
            ):
                found.append(f"tensor of shape {list(node.t('value').shape)}")
    return found


def graphs(program: torch.jit.ScriptModule) -> list[torch.Graph]:
    """The graphs of the module and of all modules below it: one for each time it is called."""
    return [
        module._c._get_method(name).graph
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


def _lay_out_kernels(traced: torch.jit.ScriptModule) -> None:
    """As convolutions want their weights, which otherwise are copied for each batch."""
    for module in traced.modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _call(
    module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], where: str
) -> tuple[torch.Tensor, ...]:
    """The outputs, always as a tuple; random numbers are the same at every call."""
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            outputs = module(*arguments)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ExportError(f"the program fails on {where}: {reason}") from error
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _difference(
    found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], where: str
) -> float:
    """The largest difference, if the shapes agree and it is within the tolerance."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise ExportError(
                f"the program returns {list(one.shape)} instead of {list(other.shape)} for {where}"
            )
        if one.numel() == 0:
            continue
        one, other = one.double(), other.double()
        difference = ((one - other).abs() / other.abs().clamp(min=1)).max().item()
        if not difference <= TOLERANCE:  # Also when it is not a number.
            raise ExportError(f"the program differs from the model by {difference:.2g} for {where}")
        worst = max(worst, difference)
    return worst


def _is_device(node: torch.Node) -> bool:
    return node.output().type().kind() == "DeviceObjType" and node.hasAttribute("value")


def _replace_device_constants(graph: torch.Graph) -> None:
    """Makes every constant device in `graph` the device of the graph's first tensor argument."""
    constants = [
        node for node in graph.findAllNodes("prim::Constant", recurse=True) if _is_device(node)
    ]
    if not constants:
        return
    tensors = [
        value for value in graph.inputs() if value.type().isSubtypeOf(torch._C.TensorType.get())
    ]
    if not tensors:
        raise ExportError("the program fixes a device where it has no tensor argument to follow")
    device = graph.create("prim::device", [tensors[0]], 1)
    device.output().setType(torch._C.DeviceObjType.get())
    graph.prependNode(device)
    for node in constants:
        node.output().replaceAllUsesWith(device.output())
        node.destroy()


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
