"""Makes programs follow the precision that they are loaded in.

A trace keeps what the model's code took from its weights: masks and conversions to their format, the least
number of it. Where such a program is loaded in another precision, these meet weights of another format, and it
fails. So the model is traced once more with weights of 16 bits; what differs between the traces is what follows
the weights, and is looked up by their format when the program runs. What is in 32 bits in both, as the model's
own code wants it, stays so, and so do buffers that the model computes and does not store: its library leaves
them alone, too.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .kernels import lay_out_kernels

# PyTorch's numbers of formats, as programs hold them.
_CODES = {torch.float32: 6, torch.bfloat16: 15, torch.float16: 5}
_TRACED = torch.bfloat16
# Of a module without weights: an empty buffer, which has their format.
_FORMAT = "format_of_weights"
# What only arranges values, and differs where a conversion gives back the same tensor.
_ARRANGING = ("prim::TupleConstruct", "prim::TupleUnpack", "prim::GetAttr", "prim::CallMethod", "aten::to")
_LIMITS = ("min", "max", "eps", "tiny")


class Unlike(Exception):
    """The traces are of different operations, so nobody knows what follows the weights."""


@contextlib.contextmanager
def halved(module: torch.nn.Module, *, stored_only: bool) -> Iterator[torch.dtype]:
    """While the weights of a module are of 16 bits, and its buffers: those that are stored, as its library
    loads them, or all."""
    changed, empty = {}, torch.zeros(0)
    bare = [part for part in module.modules() if not any(_is_whole(weight) for weight in part.parameters())]
    for part in module.modules():
        computed = part._non_persistent_buffers_set if stored_only else ()
        buffers = [buffer for name, buffer in part.named_buffers(recurse=False) if name not in computed]
        changed |= {id(tensor): tensor for tensor in (*part.parameters(recurse=False), *buffers)}
    whole = [(tensor, tensor.data) for tensor in changed.values() if _is_whole(tensor)]
    try:
        for part in bare:
            part.register_buffer(_FORMAT, empty)
        for tensor, data in whole:
            tensor.data = data.to(_TRACED)
        lay_out_kernels(module)
        yield _TRACED
    finally:
        for tensor, data in whole:
            tensor.data = data
        for part in bare:
            delattr(part, _FORMAT)


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32


def follow_format(
    half: torch.jit.ScriptModule,
    whole: torch.jit.ScriptModule,
    module: torch.nn.Module,
    *,
    stored_only: bool,
) -> bool:
    """Changes `half`, a trace of the module made within `halved`, so that it computes in the format that its
    weights have; `whole` is a trace of it in 32 bits. Returns whether there was anything to change.

    Raises `Unlike` if they are of different operations.
    """
    conversions = [place for place in _nodes(half) if _takes_format(place.node)]
    constants = list(_constants(whole, half))
    if not conversions and not constants:
        return False
    for place in conversions:
        _convert(place)
    for place, values in constants:
        _look_up(place, values)
    for path, part in module.named_modules() if stored_only else ():
        for name in part._non_persistent_buffers_set:
            buffer = getattr(part, name)
            if isinstance(buffer, torch.Tensor) and buffer.is_floating_point():
                _keep_whole(half, path, name, buffer)
    return True


@dataclass(frozen=True)
class _Place:
    """A node, the graph that it is in, the module that this is of, and where that is in the program."""

    path: tuple[str, ...]
    module: torch.jit.ScriptModule
    graph: torch.Graph
    node: torch.Node


def _nodes(program: torch.jit.ScriptModule) -> list[_Place]:
    """In the order in which they run: a trace has a graph for each call of a module."""
    found: list[_Place] = []

    def walk(path: tuple[str, ...], graph: torch.Graph, block: torch.Graph | torch.Block) -> None:
        module = program.get_submodule(".".join(path))
        for node in block.nodes():
            found.append(_Place(path, module, graph, node))
            if node.kind() == "prim::CallMethod":
                called = path + _path_of(graph, next(iter(node.inputs())))
                inner = program.get_submodule(".".join(called))._c._get_method(node.s("name")).graph
                walk(called, inner, inner)
            for inner in node.blocks():
                walk(path, graph, inner)

    for name in program._c._method_names():
        top = program._c._get_method(name).graph
        walk((), top, top)
    return found


def _path_of(graph: torch.Graph, value: torch.Value) -> tuple[str, ...]:
    """From the graph's own module to the one that a value is."""
    path, first = [], next(iter(graph.inputs()))
    while value.debugName() != first.debugName():
        node = value.node()
        if node.kind() != "prim::GetAttr":
            raise Unlike(node.kind())
        path.append(node.s("name"))
        value = next(iter(node.inputs()))
    return tuple(reversed(path))


def _arguments(node: torch.Node) -> Iterator[tuple[str, torch.Value]]:
    """The inputs of an operation, by the names of its schema."""
    if node.schema() == "(no schema)":
        return
    schema = torch._C.parse_schema(node.schema())
    yield from zip((argument.name for argument in schema.arguments), node.inputs(), strict=False)


def _takes_format(node: torch.Node) -> bool:
    return any(name == "dtype" and value.toIValue() == _CODES[_TRACED] for name, value in _arguments(node))


def _convert(place: _Place) -> None:
    """To the format of the weights, instead of the one that they had."""
    for at, (name, value) in enumerate(_arguments(place.node)):
        if name == "dtype" and value.toIValue() == _CODES[_TRACED]:
            place.node.replaceInput(at, _format_of(place))


def _format_of(place: _Place) -> torch.Value:
    """The number of the weights' format, found once at the beginning of the graph."""
    graph, first = place.graph, next(iter(place.graph.nodes()))
    for node in graph.nodes():
        if node.kind() == "prim::dtype":
            return node.output()
        if node.kind() != "prim::GetAttr":
            break
    value, held = next(iter(graph.inputs())), place.module._c
    for name in _weight_of(place.module).split("."):
        held = held.getattr(name)
        found = graph.create("prim::GetAttr", [value], 1)
        found.s_("name", name)
        is_tensor = isinstance(held, torch.Tensor)
        found.output().setType(torch._C.TensorType.get() if is_tensor else held._type())
        found.insertBefore(first)
        value = found.output()
    code = graph.create("prim::dtype", [value], 1)
    code.output().setType(torch._C.IntType.get())
    code.insertBefore(first)
    return code.output()


def _weight_of(module: torch.jit.ScriptModule) -> str:
    """The path of one that is converted."""
    empty = (pair for pair in module.named_buffers() if pair[0].rpartition(".")[2] == _FORMAT)
    return next(name for name, tensor in (*module.named_parameters(), *empty) if _is_whole(tensor))


def _constants(
    whole: torch.jit.ScriptModule, half: torch.jit.ScriptModule
) -> Iterator[tuple[_Place, dict[torch.dtype, object]]]:
    """The constants of `half` that differ from those of `whole`, with what they are in each format."""
    one, other = (
        [place for place in _nodes(program) if place.node.kind() not in _ARRANGING and not _is_for_to(place.node)]
        for program in (whole, half)
    )
    if [place.node.kind() for place in one] != [place.node.kind() for place in other]:
        raise Unlike
    for wide, narrow in zip(one, other, strict=True):
        if narrow.node.kind() != "prim::Constant" or _is_format(narrow.node):
            continue
        values = wide.node.output().toIValue(), narrow.node.output().toIValue()
        if isinstance(values[1], torch.Tensor) and values[1].is_floating_point():
            if values[0].dtype != values[1].dtype or not torch.equal(*values):
                yield narrow, _tensors(*values)
        elif isinstance(values[1], float):
            if values[0] != values[1]:
                yield narrow, _numbers(*values)
        elif not isinstance(values[1], torch.Tensor) and values[0] != values[1]:
            raise Unlike(narrow.node.kind())


def _is_for_to(node: torch.Node) -> bool:
    """Whether a constant says nothing but how something is converted."""
    uses = node.output().uses() if node.kind() == "prim::Constant" else []
    return bool(uses) and all(use.user.kind() == "aten::to" for use in uses)


def _is_format(node: torch.Node) -> bool:
    """Whether a constant is the format that something is made in."""
    uses = node.output().uses()
    names = [[name for name, _ in _arguments(use.user)][use.offset : use.offset + 1] for use in uses]
    return bool(uses) and all(name == ["dtype"] for name in names)


def _numbers(wide: float, narrow: float) -> dict[torch.dtype, float]:
    limits = {kind: torch.finfo(kind) for kind in _CODES}
    third = wide
    for name in _LIMITS:
        if getattr(limits[_TRACED], name) == narrow and getattr(limits[torch.float32], name) == wide:
            third = getattr(limits[torch.float16], name)
    return {torch.float32: wide, _TRACED: narrow, torch.float16: third}


def _tensors(wide: torch.Tensor, narrow: torch.Tensor) -> dict[torch.dtype, torch.Tensor]:
    limit = torch.finfo(torch.float16).max
    bounded = wide.clamp(-limit, limit).where(wide.isfinite(), wide)
    third = bounded if narrow.dtype == torch.float32 else bounded.to(torch.float16)
    return {torch.float32: wide, _TRACED: narrow, torch.float16: third}


def _look_up(place: _Place, values: dict[torch.dtype, object]) -> None:
    """By the weights' format, in place of a constant."""
    graph, node = place.graph, place.node
    is_tensor = isinstance(values[_TRACED], torch.Tensor)
    kind = torch._C.TensorType.get() if is_tensor else torch._C.FloatType.get()
    code = _format_of(place)
    graph.setInsertPoint(node)
    pairs = []
    for format, value in values.items():
        pairs += [graph.insertConstant(_CODES[format]), graph.insertConstant(value)]
    table = graph.create("prim::DictConstruct", pairs, 1)
    table.output().setType(torch._C.DictType(torch._C.IntType.get(), kind))
    found = graph.create("aten::__getitem__", [table.output(), code], 1)
    found.output().setType(kind)
    table.insertBefore(node)
    found.insertBefore(node)
    node.output().replaceAllUsesWith(found.output())
    node.destroy()


def _keep_whole(half: torch.jit.ScriptModule, path: str, name: str, buffer: torch.Tensor) -> None:
    """Makes a buffer a constant, which is not converted."""
    owner = tuple(path.split(".")) if path else ()
    for place in _nodes(half):
        node = place.node
        if node.kind() != "prim::GetAttr" or node.s("name") != name:
            continue
        if place.path + _path_of(place.graph, next(iter(node.inputs()))) != owner:
            continue
        place.graph.setInsertPoint(node)
        node.output().replaceAllUsesWith(place.graph.insertConstant(buffer.detach().clone()))
        node.destroy()
