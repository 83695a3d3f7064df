"""Traces an encoder to TorchScript that runs on any device, and proves that it computes the same.

In: an `Encoder`. Out: a file. A trace bakes in the device it ran on; such constants are replaced
by the device of the arguments, and none may remain. Must not know about tokenizers or packages.
"""

import warnings
from pathlib import Path

import torch

from encoder import Encoder
from errors import ExportError

TOLERANCE = 1e-5
ROWS_TESTED = (1, 2, 7)


def write_program(encoder: Encoder, path: Path, vocabulary: int, pad_id: int) -> None:
    """Traces `encoder` and saves it at `path`."""
    example = _example(rows=3, length=6, vocabulary=vocabulary, pad_id=pad_id)
    with warnings.catch_warnings(), torch.no_grad():
        # Warnings of baked-in values: `test_program` is what decides.
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(encoder, example, check_trace=False)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"the model cannot be traced to TorchScript: {reason}") from error
    for graph in _graphs(traced):
        _replace_device_constants(graph)
    traced.save(str(path))


def test_program(
    encoder: Encoder, path: Path, vocabulary: int, pad_id: int, max_tokens: int
) -> tuple[float, int]:
    """Reloads the program and compares it with `encoder`.

    Returns the largest difference seen and the number of dimensions.
    """
    program = torch.jit.load(str(path), map_location="cpu")
    baked = baked_constants(program)
    if baked:
        raise ExportError(f"the program holds constants tied to one device: {'; '.join(baked)}")
    check_moves(path)
    worst = 0.0
    for rows in ROWS_TESTED:
        for length in sorted({3, 4, min(37, max_tokens), max_tokens // 2 + 1, max_tokens}):
            arguments = _example(rows, length, vocabulary, pad_id)
            with torch.no_grad():
                expected = encoder(*arguments)
                try:
                    found = program(*arguments)
                except RuntimeError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise ExportError(
                        f"the program fails on {rows} rows of {length} tokens: {reason}"
                    ) from error
                worst = max(worst, _difference(found, expected, f"{rows} rows of {length} tokens"))
                # Row 0 has no padding in it; more columns of padding must not change the others.
                alone = int(arguments[1][-1].sum())
                single = program(arguments[0][-1:, :alone], arguments[1][-1:, :alone])
                worst = max(
                    worst, _difference(found[-1:], single, f"padding of {length - alone} tokens")
                )
    return worst, expected.shape[1]


def check_moves(path: Path) -> None:
    """Runs the program on PyTorch's "meta" device, which computes shapes only but, as a GPU does,
    refuses tensors of another device: a check that needs no GPU."""
    program = torch.jit.load(str(path), map_location="cpu")
    for module in program.modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            module._c.setattr(name, tensor.detach().to("meta"))
    arguments = [torch.ones(2, 5, dtype=torch.int64, device="meta")] * 2
    try:
        with torch.no_grad():
            program(*arguments)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ExportError(f"the program runs on the CPU only: {reason}") from error


def baked_constants(program: torch.jit.ScriptModule) -> list[str]:
    """What ties the program to one device: device constants, and tensors other than scalars."""
    found = []
    for graph in _graphs(program):
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


def _example(
    rows: int, length: int, vocabulary: int, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded random ids; the first row is full, the others shorter and padded."""
    generator = torch.Generator().manual_seed(rows * 10_007 + length)
    ids = torch.randint(0, vocabulary, (rows, length), generator=generator)
    ids[ids == pad_id] = (pad_id + 1) % vocabulary
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        used = int(torch.randint(2, length + 1, (1,), generator=generator))
        ids[row, used:] = pad_id
        mask[row, used:] = 0
    return ids, mask


def _difference(found: torch.Tensor, expected: torch.Tensor, where: str) -> float:
    """The largest absolute difference, if the shapes agree and it is within the tolerance."""
    if found.shape != expected.shape:
        raise ExportError(
            f"the program returns {list(found.shape)} instead of {list(expected.shape)} for {where}"
        )
    difference = (found - expected).abs().max().item()
    if not difference <= TOLERANCE:  # Also when it is not a number.
        raise ExportError(f"the program differs from the model by {difference:.2g} for {where}")
    return difference


def _graphs(program: torch.jit.ScriptModule) -> list[torch.Graph]:
    """The graphs of `forward` of the module and of all modules below it."""
    return [module.graph for module in program.modules() if module._c._has_method("forward")]


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
