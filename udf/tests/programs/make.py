"""Makes the TorchScript files beside it, which Rust cannot make itself, and what PyTorch computes with
one of them:

tools/python udf/tests/programs/make.py
"""

import copy
import json
import sys
from pathlib import Path

import torch
from torch.nn.functional import gelu, linear
from torch.nn.functional import scaled_dot_product_attention as attention


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


class Layers(torch.nn.Module):
    """Linear layers in every place that matters to whoever replaces them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.erf = torch.nn.Linear(8, 16)
        self.approximate = torch.nn.Linear(8, 16)
        self.bounded = torch.nn.Linear(8, 8)
        self.rectified = torch.nn.Linear(8, 8)
        self.residual = torch.nn.Linear(8, 8, bias=False)
        self.twice = torch.nn.Linear(8, 8)
        self.deep = torch.nn.Linear(2, 3)
        self.strided = torch.nn.Linear(2, 5)
        self.single = torch.nn.Linear(8, 4)
        self.early = torch.nn.Linear(8, 8)
        self.branch = torch.nn.Linear(8, 8)
        self.table = torch.nn.Embedding(8, 8)
        self.precise = torch.nn.Linear(8, 8).double()
        self.left = torch.nn.Linear(8, 8)
        self.right = torch.nn.Linear(8, 8)
        self.beside_row = torch.nn.Linear(8, 8)
        self.beside_double = torch.nn.Linear(8, 8)
        self.beside_turned = torch.nn.Linear(8, 8)
        self.beside_more = torch.nn.Linear(8, 8)
        self.scaled = torch.nn.Linear(8, 8)
        self.grown = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor):
        rows = x.size(0)
        # Computed from what the input was before it changed.
        changing = x.clone()
        early = self.early(changing)
        changing.add_(1.0)
        if rows > 1:
            branch = torch.tanh(self.branch(x))
        else:
            branch = self.branch(x)
        return (
            gelu(self.erf(x)),
            gelu(self.approximate(x), approximate="tanh"),
            torch.tanh(self.bounded(x)),
            torch.relu_(self.rectified(x)),
            x + self.residual(x),
            self.twice(self.twice(x)),
            self.deep(x.view(rows, 2, 2, 2)).view(rows, 12),
            self.strided(x.view(rows, 2, 4).transpose(1, 2)).reshape(rows, 20),
            self.single(x.sum(0)).expand(rows, 4),
            torch.tanh(early) + changing,
            branch,
            # A weight that is read elsewhere too.
            linear(x, self.table.weight) + self.table.weight[1],
            self.precise(x.to(self.precise.weight.dtype)).float(),
            # What is added to a layer: another layer, less, more precise, in another order and more.
            self.left(x) + self.right(x),
            self.beside_row(x) + x.sum(0),
            (self.beside_double(x) + x.double()).float(),
            self.beside_turned(x) + x.t().contiguous().t(),
            self.beside_more(x.sum(0, keepdim=True)) + x,
            torch.add(self.scaled(x), x, alpha=2),
            self.grown(x).add_(x),
        )


class Wide(torch.nn.Module):
    """Layers with more inputs and more outputs than are computed at a time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(1537, 3)
        self.broad = torch.nn.Linear(3, 70)
        self.back = torch.nn.Linear(70, 64, bias=False)

    def forward(self, x: torch.Tensor):
        few = self.first(x)
        many = gelu(self.broad(few))
        return few, many, self.back(many) + many[:, :64].contiguous()


class Attention(torch.nn.Module):
    """Attention of every kind that matters to whoever replaces it."""

    def forward(self, x: torch.Tensor):
        # Queries, keys and values of two heads, side by side as a layer gives them.
        rows, tokens = x.size(0), x.size(1)
        parts = x.view(rows, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        kept = (x > 0.5)[:, :, 0].contiguous().view(rows, 1, 1, tokens)
        kept_by_query = kept & (torch.arange(tokens) != 1).view(1, 1, tokens, 1)
        by_query, by_key = x[0, :, 1].view(1, 1, tokens, 1), x[0, :, 2].view(1, 1, 1, tokens)
        by_head = by_query * by_key * torch.tensor([1.0, -2.0]).view(1, 2, 1, 1)
        return (
            attention(q, k, v),
            attention(q, k, v, kept),
            # Of one query nothing is left.
            attention(q, k, v, kept_by_query),
            attention(q, k, v, torch.ones_like(kept)),
            attention(q, k, v, by_head),
            attention(q, k, v, by_key * 2),
            attention(q, k, v, torch.triu(torch.ones(tokens, tokens, dtype=torch.bool)).view(1, 1, tokens, tokens)),
            attention(q, k, v, scale=0.3),
            attention(q[:, :, :8], k, v, kept),
            attention(q, k[:, :, :5], v[:, :, :5]),
            attention(q, k[:, :, :1], v[:, :, :1]),
            # Which is read in the order that PyTorch gives it in.
            attention(q.contiguous(), k, v).view(rows * 2, tokens, 4),
            attention(q, k, v[:, :, :, :3]).view(rows * 2, tokens, 3),
            attention(q.contiguous(), k.contiguous(), v.contiguous(), kept),
            attention(q, k[:1].expand(rows, 2, tokens, 4), v, kept),
            # What stays, or is left to PyTorch.
            attention(q, k, v, is_causal=True),
            attention(q.double(), k.double(), v.double()).float(),
            attention(q, k[:, :, :1].expand(rows, 2, tokens, 4), v),
            attention(q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3)),
            attention(q[0], k[0], v[0]),
            attention(q, k, v, kept[0, 0].expand(tokens, tokens)),
            attention(q, k, v, by_head.transpose(2, 3)),
            attention(q[:, :, :0], k, v),
            attention(q[:, :, :3], k, v, kept),
            attention(torch._neg_view(q), k, v),
            attention(q, k, v, torch._neg_view(by_head)),
        )


def numbers() -> torch.Tensor:
    """Some, of which one is none and one is infinite."""
    x = torch.randn(5, 8) * 3
    x[3, 2], x[4, 5] = float("nan"), float("inf")
    return x


def tokens() -> torch.Tensor:
    """Two texts of nine tokens, with what attention takes of each. A value of the first is no number, and a key of the
    second infinite: of a query that is no number PyTorch's own kernels make zeros in places."""
    x = torch.randn(2, 9, 24) * 2
    x[0, 3, 18], x[1, 5, 13] = float("nan"), float("inf")
    return x


def computed(program: torch.nn.Module, x: torch.Tensor) -> dict[str, object]:
    """What a module computes with these numbers."""
    with torch.no_grad():
        outputs = [one.reshape(-1).tolist() for one in program(x)]
    # As texts: JSON has no such numbers.
    texts = [[repr(number) for number in numbers] for numbers in (x.reshape(-1).tolist(), *outputs)]
    return {"x": texts[0], "outputs": texts[1:]}


def rounded(program: torch.nn.Module, x: torch.Tensor) -> list[list[str]]:
    """What it computes of the same numbers with 32 bits when they and its weights have 16."""
    whole = copy.deepcopy(program).bfloat16().float()
    return computed(whole, x.bfloat16().float())["outputs"]


if __name__ == "__main__":
    folder = Path(sys.argv[0]).parent
    programs = (Several(), Nothing(), Table(), Wide(), layers := Layers(), heads := Attention())
    for program in programs:
        name = type(program).__name__.lower()
        torch.jit.save(torch.jit.script(program), str(folder / f"{name}.pt"))
    for program, x in ((layers, numbers()), (heads, tokens())):
        name = type(program).__name__.lower()
        golden = computed(program, x) | {"rounded": rounded(program, x)}
        (folder / f"{name}.json").write_text(json.dumps(golden), encoding="utf-8")
