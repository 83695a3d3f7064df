"""Programs in 8 bits: how far they are off is what is recorded, and too far is refused."""

import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest

from forebay.export import command
from forebay.export import quality
from forebay.export import quantised
from forebay.export import tiny
from forebay.export.onnx_folders import sample
from forebay.export.reader import run
from forebay.export.tiny_tasks import MODELS

ROWS = 128


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample."""
    path = tmp_path_factory.mktemp("sample") / "texts.txt"
    path.write_text("\n".join(sample(ROWS)), encoding="utf-8")
    return path


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_embeddings_are_as_near_as_is_recorded(architecture: str, texts: Path, tmp_path: Path) -> None:
    tiny.build_model(architecture, tmp_path)
    source = tmp_path / "model"
    assert _export(source, tmp_path / "whole") == 0
    assert _export(source, tmp_path / "rounded", "--precision", "int8", "--sample", str(texts)) == 0
    about = _about(tmp_path / "rounded")
    assert about["runtime"]["precision"] == "int8"
    # The other half chose the ranges.
    others = {"text": sample(ROWS)[1::2]}
    whole, rounded = (
        np.array(run(tmp_path / name, others, 1)["embedding"]) for name in ("whole", "rounded")
    )
    lengths = np.linalg.norm(whole, axis=1) * np.linalg.norm(rounded, axis=1)
    cosines = (whole * rounded).sum(axis=1) / lengths
    recorded = about["quality"]["int8"]
    assert recorded["rows"] == ROWS // 2
    assert recorded["mean_cosine"] == pytest.approx(cosines.mean(), abs=1e-4)
    assert recorded["least_cosine"] == pytest.approx(cosines.min(), abs=1e-4)
    assert 0.995 <= cosines.mean() < 0.999999


def test_linear_layers_hold_bytes(texts: Path, tmp_path: Path) -> None:
    tiny.build_model("bert", tmp_path)
    more = ("--precision", "int8", "--sample", str(texts))
    assert _export(tmp_path / "model", tmp_path / "package", *more) == 0
    graph = onnx.load(tmp_path / "package/model.onnx").graph
    matrices = [t for t in graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2]
    # Query, key, value, output, and two of the inner size, of two layers.
    assert len(matrices) == 12
    # So that CPUs without VNNI add up without overflow.
    assert max(np.abs(onnx.numpy_helper.to_array(t).astype(int)).max() for t in matrices) == 64
    assert not [node for node in graph.node if node.op_type.startswith("Dynamic")]


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        ("classification-bert", "equal_labels"),
        ("tokens-bert", "equal_labels"),
        ("rerank-bert", "correlation"),
        ("rerank-electra", "equal_labels"),
    ],
)
def test_other_tasks_are_measured_by_what_they_give(
    name: str, measure: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random weights decide labels by a hair.
    monkeypatch.setattr(quality, "LABELS_LEAST", 0.8)
    (tmp_path / "source").mkdir()
    MODELS[name].build(tmp_path / "source")
    rows = sample(ROWS)
    pairs = "\n".join(f"{one}\t{other}" for one, other in zip(rows, rows[::-1], strict=True))
    (tmp_path / "pairs.txt").write_text(pairs, encoding="utf-8")
    file = tmp_path / "pairs.txt" if name.startswith("rerank") else texts
    more = (*MODELS[name].arguments, "--precision", "int8", "--sample", str(file))
    assert _export(tmp_path / "source", tmp_path / "package", *more) == 0
    recorded = _about(tmp_path / "package")["quality"]["int8"]
    assert recorded.keys() == {"rows", measure}
    assert 0.8 <= recorded[measure] <= 1


def test_a_program_that_is_too_far_off_is_refused(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build_model("bert", tmp_path)
    monkeypatch.setattr(quantised, "WEIGHT_STEPS", 2)
    more = ("--precision", "int8", "--sample", str(texts))
    assert _export(tmp_path / "model", tmp_path / "package", *more) == 1
    message = capsys.readouterr().err
    assert "in 8 bits the program is too far off: mean cosine 0." in message
    assert "expected a mean cosine of 0.995 or more; leave out --precision int8" in message
    assert not (tmp_path / "package").exists()


def test_layers_that_lose_most_stay_as_they_are(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.build_model("bert", tmp_path)
    more = ("--precision", "int8", "--sample", str(texts), "--force")
    source, package = tmp_path / "model", tmp_path / "package"
    assert _export(source, package, *more) == 0
    reached = _about(package)["quality"]["int8"]["mean_cosine"]
    # A little more than all layers reach.
    monkeypatch.setattr(quality, "COSINE_LEAST", reached + 5e-5)
    assert _export(source, package, *more) == 0
    graph = onnx.load(package / "model.onnx").graph
    matrices = [t for t in graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2]
    assert 6 <= len(matrices) < 12
    assert _about(package)["quality"]["int8"]["mean_cosine"] > reached


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--precision", "int8", "--format", "torch"), "--precision int8 is for programs in ONNX format"),
        (("--precision", "int8"), "--precision int8 needs --sample FILE"),
        (("--sample", "x"), "--sample is for --precision int8; leave it out"),
        (("--precision", "int8", "--sample", "nowhere"), "--sample nowhere: there is no such file"),
    ],
)
def test_options_that_do_not_fit(
    options: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build_model("bert", tmp_path)
    assert _export(tmp_path / "model", tmp_path / "package", *options) == 1
    assert expected in capsys.readouterr().err


def test_samples_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    MODELS["rerank-bert"].build(tmp_path / "source")
    file = tmp_path / "sample.txt"
    more = (*MODELS["rerank-bert"].arguments, "--precision", "int8", "--sample", str(file))
    for content, expected in [
        (b"\xff\xfe\x00", "it cannot be read as text"),
        (b"one text\n", "the line 'one text' has 1 texts, expected 2, with a tab between them"),
        (b"a\tb\n" * 99, "it has 1 different lines, expected 64 or more"),
    ]:
        file.write_bytes(content)
        assert _export(tmp_path / "source", tmp_path / "package", *more) == 1
        assert expected in capsys.readouterr().err
    # Of weights of tokens no measure is known.
    (tmp_path / "sparse").mkdir()
    MODELS["sparse-bert"].build(tmp_path / "sparse")
    more = ("--precision", "int8", "--sample", str(file))
    assert _export(tmp_path / "sparse", tmp_path / "package", *more) == 1
    assert "--precision int8 is for embeddings, classifiers, taggers" in capsys.readouterr().err


def _export(source: Path, package: Path, *more: str) -> int:
    request = ["--source", str(source), "--output", str(package), "--license", "CC0-1.0"]
    return command.main([*request, "--format", "onnx", *more])


def _about(package: Path) -> dict:
    return tomllib.loads((package / "model.toml").read_text())
