"""Programs' second method in half precision, and one that is wrong; test_export.py compares it with the library."""

from pathlib import Path

import pytest
import torch

from forebay.export import program, tiny, unmasked
from forebay.export.candidate import Candidate, Column, Tokens
from forebay.export.encoder import embedding
from forebay.export.errors import ExportError

@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_method_too(tmp_path: Path, kind: torch.dtype) -> None:
    tiny.build_model("bert", tmp_path)
    program.write_program(embedding(tmp_path / "model", None), tmp_path / "model.pt")
    loaded = torch.jit.load(str(tmp_path / "model.pt")).to(kind)
    ids = torch.randint(5, 60, (3, 9))
    with torch.no_grad():
        found = getattr(loaded, unmasked.METHOD)(ids)
        assert found.dtype == kind
        assert (found - loaded(ids, torch.ones_like(ids))).abs().max() <= 0.05


class _Wrong(torch.nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = ids.float().reshape(ids.size(0), 1, -1, 1)
        bias = mask.float().reshape(mask.size(0), 1, 1, -1)
        return torch.nn.functional.scaled_dot_product_attention(values, values, values, attn_mask=bias).sum((1, 2))

    @torch.jit.export
    def without_mask(self, ids: torch.Tensor) -> torch.Tensor:
        values = ids.float().reshape(ids.size(0), 1, -1, 1)
        return 2 * torch.nn.functional.scaled_dot_product_attention(values, values, values).sum((1, 2))


def test_a_program_whose_methods_differ_is_refused(tmp_path: Path) -> None:
    columns = (Column("text", "STRING"),), (Column("sum", "FLOAT[1]"),)
    candidate = Candidate(torch.jit.script(_Wrong()), *columns, Tokens(8, 0, 9), "", lambda tokens: 0)
    with pytest.raises(ExportError, match="method without_mask does not give what forward gives"):
        program.write_program(candidate, tmp_path / "model.pt")
