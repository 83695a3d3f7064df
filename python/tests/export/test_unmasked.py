"""Programs' second method, against the library's own call on texts of one length."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from forebay.export import program, tiny, unmasked
from forebay.export.candidate import Candidate, Column, Tokens
from forebay.export.encoder import embedding
from forebay.export.errors import ExportError

# Those whose attention takes no mask where nothing is padded. Each layer of ModernBERT but every third attends to
# tokens nearby.
MASKED_AFTER = {
    "bert": 0, "distilbert": 0, "roberta": 0, "xlm-roberta": 0, "electra": 0, "mpnet": None, "modernbert": None,
    "gpt2": 0, "gpt-neo": None, "gptj": None,
}  # fmt: skip
TEXTS = ["water", "turbine", "forebay", "dam"]


@pytest.fixture(params=tiny.ARCHITECTURES)
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """A kind, its source folder and its program."""
    tiny.build_model(request.param, tmp_path)
    program.write_program(embedding(tmp_path / "model", None), tmp_path / "model.pt")
    return request.param, tmp_path / "model", tmp_path / "model.pt"


def test_rows_without_padding_are_what_the_library_gives(traced: tuple[str, Path, Path]) -> None:
    name, source, path = traced
    loaded = torch.jit.load(str(path))
    if MASKED_AFTER[name] is None:
        assert not hasattr(loaded, unmasked.METHOD)
        return
    assert unmasked._masked(loaded, "forward") > MASKED_AFTER[name] == unmasked._masked(loaded, unmasked.METHOD)
    model = SentenceTransformer(str(source), device="cpu")
    by_length: dict[int, list[str]] = {}
    for text in (f"{a} {b}" for a in TEXTS for b in TEXTS):
        by_length.setdefault(len(model.tokenizer(text)["input_ids"]), []).append(text)
    for texts in by_length.values():
        ids = model.tokenizer(texts, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found = getattr(loaded, unmasked.METHOD)(ids).numpy()
        assert np.abs(found - model.encode(texts)).max() <= 1e-5


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
