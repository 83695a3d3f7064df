"""Tells whether a program gives the same result each time, which decides what a query may reuse.

The most that is recorded is `stable`: the same batch gives the same bits, and the same row beside other
rows the same up to rounding, because libraries of linear algebra sum in an order that depends on the
batch's shape, the processor and the device.

Two proofs, each of which alone can say `volatile`: the program's graph holds an operation that
draws random numbers (a dropout that stayed on, `torch.rand`), or two runs on the same input differ.
"""

from pathlib import Path

import torch

from .candidate import Candidate
from .program import call, graphs

RUNS, ROWS = 3, 3
LENGTH_MAX = 64


def determinism_of(candidate: Candidate, path: Path) -> tuple[str, str]:
    """`stable` or `volatile`, and the reason for the latter."""
    program = torch.jit.load(str(path), map_location="cpu")
    random = sorted(
        {node.kind() for graph in graphs(program) for node in _nodes(graph) if _is_random(node)}
    )
    if random:
        return "volatile", f"it draws random numbers ({', '.join(random)})"
    length = max(length for length in candidate.transform.lengths() if length <= LENGTH_MAX)
    arguments = candidate.transform.example(ROWS, length)
    runs = []
    for seed in range(RUNS):
        runs.append(call(program, arguments, f"{ROWS} rows of length {length}", seed))
    if all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True)):
        return "stable", ""
    return "volatile", "two runs on the same input differ"


def _nodes(graph: torch.Graph) -> list[torch.Node]:
    found, blocks = [], [graph]
    while blocks:
        for node in blocks.pop().nodes():
            found.append(node)
            blocks.extend(node.blocks())
    return found


def _is_random(node: torch.Node) -> bool:
    """Whether PyTorch tags the operation as drawing numbers, and nothing switches that off."""
    namespace, _, name = node.kind().partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), name.rstrip("_"), None)
    packet = packet or getattr(getattr(torch.ops, namespace, None), name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    tagged = [op for op in overloads if torch.Tag.nondeterministic_seeded in op.tags]
    if not tagged:
        return False
    # Attention and dropout carry the tag but draw nothing at a probability of 0 or when not
    # training.
    for op in tagged:
        for position, argument in enumerate(op._schema.arguments[: len(list(node.inputs()))]):
            value = list(node.inputs())[position].toIValue()
            off = {"train": value is False, "training": value is False}
            off |= {"p": value == 0, "dropout_p": value == 0}
            if value is not None and off.get(argument.name):
                return False
    return True
