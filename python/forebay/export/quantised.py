"""Makes the linear layers of an ONNX program compute in 8 bits, and measures what that costs in quality.

Weights are rounded by output channel, activations by one range each, which a sample of texts shows. Two
things keep that close to the program: numbers that are far larger in some channels of an activation move
into the weights behind it before either is rounded (as SmoothQuant does), and what a layer gives is not
rounded again. Weights keep to 7 of their 8 bits, so that pairs of products fit the 16 bits in which CPUs
without VNNI add them up: the results are those of any CPU.

One half of the sample shows the ranges; how far the program is off is measured on the other half.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .candidate import Candidate
from .errors import ExportError
from .onnx_program import arguments_of, load
from .quality import Quality, check_measurable, measure
from .reader import token_arguments

# How much of a channel's size moves from activations into weights.
SMOOTHNESS = 0.7
# Steps of activations from their least to their greatest, and of weights to either side.
ACTIVATION_STEPS, WEIGHT_STEPS = 255, 64
# Shares of the layers that stay as they are, those that lose most: each is tried until quality will do.
KEPT_SHARES = (0.0, 1 / 6, 1 / 3, 1 / 2)
ROWS_LEAST, ROWS_MOST = 64, 512
# Rows of an activation by which a layer's loss is estimated.
ACTIVATIONS = 256
# What a channel that is always 0 is taken for.
TINY = 1e-6
# The names of a program's arguments, and the arguments of each row.
_Sample = tuple[tuple[str, ...], list[list[np.ndarray]]]


@dataclass
class _Activation:
    """What a linear layer is given, as the sample shows it: by channel the least and the greatest, and some
    rows of it."""

    least: np.ndarray
    greatest: np.ndarray
    rows: np.ndarray

    def add(self, rows: np.ndarray) -> None:
        """More of it."""
        self.least = np.minimum(self.least, rows.min(axis=0, initial=0.0))
        self.greatest = np.maximum(self.greatest, rows.max(axis=0, initial=0.0))
        if len(self.rows) < ACTIVATIONS:
            self.rows = np.concatenate([self.rows, rows[::8]])

    def divided(self, divisors: np.ndarray) -> "_Activation":
        """By a number above 0 for each channel."""
        return _Activation(self.least / divisors, self.greatest / divisors, self.rows / divisors)

    def steps(self) -> tuple[np.float32, np.uint8]:
        """The size of a step, and the step that is 0."""
        least, greatest = float(self.least.min()), float(self.greatest.max())
        size = max(greatest - least, TINY) / ACTIVATION_STEPS
        return np.float32(size), np.uint8(round(-least / size))


def quantise(candidate: Candidate, package: Path, program: Path, sample: Path) -> Quality:
    """Replaces the program by one in 8 bits; an error if its quality does not do."""
    check_measurable(candidate)
    batches = _arguments(candidate, package, sample)
    calibration, others = batches[0::2], batches[1::2]
    whole = onnx.load(program)
    _split_gemms(whole)
    layers = _linears(whole)
    if not layers:
        raise ExportError(
            "the program has no linear layers, which are what --precision int8 rounds; leave it out"
        )
    exact = load(candidate, program)
    activations = _smooth(whole, layers, _activations(whole, layers, (arguments_of(candidate), calibration)))
    losses = {layer.name: _loss(whole, layer, activations[layer.input[0]]) for layer in layers}
    order = sorted(losses, key=losses.get)
    for share in KEPT_SHARES:
        chosen = set(order[: round(len(order) * (1 - share))])
        made = _rounded(whole, chosen, activations)
        onnx.save(made, program)
        quality = measure(candidate, exact, load(candidate, program), others)
        if quality.will_do():
            return quality
    raise ExportError(
        f"in 8 bits the program is too far off: {quality}, expected {quality.expected()}; leave out "
        "--precision int8, or pass a --sample of more texts, as those of your queries are"
    )


def _arguments(candidate: Candidate, package: Path, sample: Path) -> list[list[np.ndarray]]:
    """The program's arguments for each row of a sample, spread over the whole file."""
    transform, columns = candidate.transform, len(candidate.inputs)
    try:
        lines = sample.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"--sample {sample}: it cannot be read as text: {error}") from error
    rows = [tuple(line.split("\t")) if columns > 1 else (line,) for line in lines if line.strip()]
    for row in rows:
        if len(row) != columns:
            raise ExportError(
                f"--sample {sample}: the line {chr(9).join(row)[:60]!r} has {len(row)} texts, expected "
                f"{columns}, with a tab between them"
            )
    rows = list(dict.fromkeys(rows))
    if len(rows) < ROWS_LEAST:
        raise ExportError(
            f"--sample {sample}: it has {len(rows)} different lines, expected {ROWS_LEAST} or more"
        )
    count = min(len(rows), ROWS_MOST)
    prefix = candidate.prompts.get(candidate.prompt, "")
    spread = (rows[index * len(rows) // count] for index in range(count))
    about = {key: getattr(transform, key) for key in ("max_tokens", "pad_id", "arguments")}

    def made(row: tuple[str, ...]) -> list[np.ndarray]:
        batch = [[prefix + row[0]], *([text] for text in row[1:])]
        tensors = token_arguments(package / "tokenizer.json", batch, **about)
        return [tensor.numpy() for tensor in tensors]

    return [made(row) for row in spread]


def _weights(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def _split_gemms(model: onnx.ModelProto) -> None:
    """Makes products and sums of the operators that are both, so that there is one kind of layer."""
    weights = _weights(model)
    for node in [node for node in model.graph.node if node.op_type == "Gemm"]:
        about = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        is_plain = about.get("alpha", 1.0) == about.get("beta", 1.0) == 1.0 and not about.get("transA")
        if not is_plain or node.input[1] not in weights:
            continue
        weight = numpy_helper.to_array(weights[node.input[1]])
        name = f"{node.name}_matrix"
        held = np.ascontiguousarray(weight.T if about.get("transB") else weight)
        model.graph.initializer.append(numpy_helper.from_array(held, name))
        has_bias = len(node.input) > 2 and node.input[2] != ""
        product = f"{node.name}_product" if has_bias else node.output[0]
        given = [node.input[0], name]
        made = [helper.make_node("MatMul", given, [product], name=f"{node.name}_MatMul")]
        if has_bias:
            added = [product, node.input[2]]
            made.append(helper.make_node("Add", added, list(node.output), name=f"{node.name}_Add"))
        _insert(model, node, made)
        model.graph.node.remove(node)


def _linears(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The products with a matrix of weights."""
    weights = _weights(model)

    def is_one(node: onnx.NodeProto) -> bool:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        is_matrix = weight is not None and len(weight.dims) == 2
        return is_matrix and weight.data_type == onnx.TensorProto.FLOAT and node.input[0] not in weights

    return [node for node in model.graph.node if is_one(node)]


def _activations(
    model: onnx.ModelProto, layers: list[onnx.NodeProto], sample: _Sample
) -> dict[str, _Activation]:
    """What the layers are given over the sample, by name."""
    names = list(dict.fromkeys(layer.input[0] for layer in layers))
    seen: dict[str, _Activation] = {}
    for name, values in _watch(model, names, sample):
        rows = values.reshape(-1, values.shape[-1])
        nothing = np.zeros(rows.shape[1], np.float32)
        seen.setdefault(name, _Activation(nothing, nothing, rows[:0])).add(rows)
    return seen


def _watch(
    model: onnx.ModelProto, names: list[str], sample: _Sample
) -> Iterator[tuple[str, np.ndarray]]:
    """The values of these names, batch by batch."""
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    known = {output.name for output in watched.graph.output}
    for name in names:
        if name not in known:
            value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            watched.graph.output.append(value)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=providers)
    taken = [one.name for one in session.get_inputs()]
    arguments, batches = sample
    for batch in batches:
        inputs = {name: value for name, value in zip(arguments, batch, strict=True) if name in taken}
        yield from zip(names, session.run(names, inputs), strict=True)


def _smooth(
    model: onnx.ModelProto, layers: list[onnx.NodeProto], activations: dict[str, _Activation]
) -> dict[str, _Activation]:
    """Divides each activation by a number for each channel, by which the weights behind it are multiplied.
    Returns what the layers are given then."""
    weights, made = _weights(model), {}
    for name, seen in activations.items():
        behind = [layer for layer in layers if layer.input[0] == name]
        held = {layer.name: numpy_helper.to_array(weights[layer.input[1]]) for layer in behind}
        divisors = _divisors(seen, list(held.values()))
        smoothed, factors = f"{name}_smoothed", f"{name}_factors"
        model.graph.initializer.append(numpy_helper.from_array(1 / divisors, factors))
        node = helper.make_node("Mul", [name, factors], [smoothed], name=f"{smoothed}_Mul")
        _insert(model, behind[0], [node])
        for layer in behind:
            matrix = f"{layer.name}_smoothed_matrix"
            scaled = held[layer.name] * divisors[:, None]
            model.graph.initializer.append(numpy_helper.from_array(scaled, matrix))
            layer.input[0], layer.input[1] = smoothed, matrix
        made[smoothed] = seen.divided(divisors)
    return made


def _divisors(seen: _Activation, weights: list[np.ndarray]) -> np.ndarray:
    """What makes the channels of an activation and of the weights behind it more alike in size."""
    given = np.maximum(np.maximum(-seen.least, seen.greatest), TINY)
    counted = np.maximum(np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0), TINY)
    divisors = given**SMOOTHNESS / counted ** (1 - SMOOTHNESS)
    return (divisors / np.exp(np.log(divisors).mean())).astype(np.float32)


def _insert(model: onnx.ModelProto, before: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> None:
    """Puts nodes in front of another."""
    at = next(index for index, node in enumerate(model.graph.node) if node.name == before.name)
    for offset, node in enumerate(nodes):
        model.graph.node.insert(at + offset, node)


def _steps_of(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix in steps, and their size by output channel."""
    sizes = np.maximum(np.abs(weight).max(axis=0), TINY) / WEIGHT_STEPS
    return np.rint(weight / sizes).astype(np.int8), sizes.astype(np.float32)


def _loss(model: onnx.ModelProto, layer: onnx.NodeProto, seen: _Activation) -> float:
    """The share of a layer's result that rounding takes."""
    weight = numpy_helper.to_array(_weights(model)[layer.input[1]])
    size, zero = seen.steps()
    steps = np.clip(np.rint(seen.rows / size) + zero, 0, ACTIVATION_STEPS) - zero
    whole_steps, sizes = _steps_of(weight)
    exact = seen.rows @ weight
    off = (steps * size) @ (whole_steps * sizes) - exact
    return float(np.square(off).sum() / max(np.square(exact).sum(), TINY))


def _rounded(
    model: onnx.ModelProto, chosen: set[str], activations: dict[str, _Activation]
) -> onnx.ModelProto:
    """A copy in which the chosen layers take and hold steps."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights, done = _weights(made), set()
    for layer in [node for node in made.graph.node if node.name in chosen]:
        name, matrix = layer.input[0], layer.input[1]
        nodes = []
        if name not in done:
            done.add(name)
            steps = dict(zip(("size", "zero"), activations[name].steps(), strict=True))
            parts = _held(made, name, steps)
            in_steps, rounded = f"{name}_steps", f"{name}_rounded"
            nodes = [
                helper.make_node("QuantizeLinear", [name, *parts], [in_steps], name=f"{name}_round"),
                helper.make_node("DequantizeLinear", [in_steps, *parts], [rounded], name=rounded),
            ]
        whole_steps, sizes = _steps_of(numpy_helper.to_array(weights[matrix]))
        zeros = np.zeros(len(sizes), np.int8)
        parts = _held(made, matrix, {"steps": whole_steps, "size": sizes, "zero": zeros})
        rounded = f"{matrix}_rounded"
        nodes.append(helper.make_node("DequantizeLinear", parts, [rounded], name=rounded, axis=1))
        _insert(made, layer, nodes)
        layer.input[0], layer.input[1] = f"{name}_rounded", rounded
    used = {name for node in made.graph.node for name in node.input}
    for tensor in [tensor for tensor in made.graph.initializer if tensor.name not in used]:
        made.graph.initializer.remove(tensor)
    return made


def _held(model: onnx.ModelProto, name: str, parts: dict[str, np.ndarray]) -> list[str]:
    """Puts arrays into the program; their names."""
    for part, value in parts.items():
        tensor = numpy_helper.from_array(np.asarray(value), f"{name}_{part}")
        model.graph.initializer.append(tensor)
    return [f"{name}_{part}" for part in parts]
