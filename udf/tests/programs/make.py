"""Makes the TorchScript files beside it, which Rust cannot make itself:

tools/python udf/tests/programs/make.py
"""

import sys
from pathlib import Path

import torch


class Several(torch.nn.Module):
    """Four results of four types, as a tuple."""

    def forward(self, x: torch.Tensor, n: torch.Tensor, b: torch.Tensor):
        total = x.sum(1)
        return total, n * 2, ~b, total.unsqueeze(1)


class Nothing(torch.nn.Module):
    """A result that is no tensor."""

    def forward(self, x: torch.Tensor):
        return "text"


class Table(torch.nn.Module):
    """Weights of two kinds: integers that index floats."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.tensor([1, 0]))
        self.weights = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))

    def forward(self, n: torch.Tensor, x: torch.Tensor):
        return self.weights[self.order[n]] + x


if __name__ == "__main__":
    folder = Path(sys.argv[0]).parent
    for program in (Several(), Nothing(), Table()):
        name = type(program).__name__.lower()
        torch.jit.save(torch.jit.script(program), str(folder / f"{name}.pt"))
