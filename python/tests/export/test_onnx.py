"""Packages whose program is in ONNX format: run by ONNX Runtime, against the models' own libraries."""

import builtins
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forebay.export import check
from forebay.export import command
from forebay.export import onnx_program
from forebay.export import tiny
from forebay.export.reader import run
from forebay.export.reference import embed
from forebay.export.texts import MIXED
from forebay.export.tiny_tasks import MODELS

# What fixtures for Rust do not cover: other architectures, and inputs of pixels.
TASKS = ("classification-modernbert", "rerank-xlm-roberta", "tokens-gpt2", "images-vit-files")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of a tiny BERT."""
    work = tmp_path_factory.mktemp("source")
    tiny.build_model("bert", work)
    return work / "model"


@pytest.mark.parametrize("architecture", ["modernbert", "gpt2", "xlm-roberta"])
def test_encoders_give_what_sentence_transformers_gives(architecture: str, tmp_path: Path) -> None:
    tiny.build_model(architecture, tmp_path)
    assert _export(tmp_path / "model", tmp_path / "package") == 0
    about = _about(tmp_path / "package")
    assert about["runtime"] == {"kind": "onnx", "program": "model.onnx"}
    assert about["resources"]["gpus"] == 0
    assert "precisions" not in about
    expected = torch.tensor(embed(tmp_path / "model", MIXED))
    for rows in (1, 7):
        found = torch.tensor(run(tmp_path / "package", {"text": list(MIXED)}, rows, "")["embedding"])
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_give_what_their_library_gives(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    (tmp_path / "source").mkdir()
    model.build(tmp_path / "source")
    assert _export(tmp_path / "source", tmp_path / "package", *model.arguments) == 0
    expected = model.expected(tmp_path / "source", model.inputs)
    found = run(tmp_path / "package", model.inputs, 3)
    for column, values in expected.items():
        for one, other in zip(found[column], values, strict=True):
            assert check.difference(one, other) <= 1e-5


def test_programs_of_users(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sum(dim=1), x * n.unsqueeze(1)

    torch.jit.save(torch.jit.script(Sum()), str(tmp_path / "sum.pt"))
    columns = ["--input", "x FLOAT[3]", "--input", "n FLOAT", "--output", "s FLOAT", "--output", "x FLOAT[3]"]
    assert _export(tmp_path / "sum.pt", tmp_path / "package", *columns) == 0
    found = run(tmp_path / "package", {"x": [[1.0, 2.0, 3.0]] * 2, "n": [2.0, 3.0]}, 2)
    assert found == {"s": [6.0, 6.0], "x": [[2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]}


def test_a_program_that_computes_something_else_is_refused(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def altered(export: Callable[..., None]) -> Callable[..., None]:
        def write(module: torch.nn.Module, *arguments: object, **options: object) -> None:
            weight = module.stages[0].auto_model.embeddings.word_embeddings.weight
            weight[7, 0] += 1.0
            export(module, *arguments, **options)
            weight[7, 0] -= 1.0

        return write

    monkeypatch.setattr(torch.onnx, "export", altered(torch.onnx.export))
    assert _export(bert, tmp_path / "package") == 1
    assert "the program differs from the model by" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


def test_what_cannot_be_exported_is_refused_with_the_reason(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patches:
        patches.setattr(onnx_program, "BYTES_MAX", 1000)
        assert _export(bert, tmp_path / "package") == 1
        assert "and a program in ONNX format holds 2 GiB at the most" in capsys.readouterr().err
    # Of an operation that ONNX does not have.

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    torch.jit.save(torch.jit.script(Odd()), str(tmp_path / "odd.pt"))
    columns = ["--input", "x FLOAT[3]", "--output", "y FLOAT[3]"]
    assert _export(tmp_path / "odd.pt", tmp_path / "package", *columns) == 1
    message = capsys.readouterr().err
    assert "the model cannot be exported to ONNX" in message and "bessel_j0" in message
    assert not (tmp_path / "package").exists()


def test_a_missing_package_is_named_before_anything_is_loaded(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = builtins.__import__

    def without(name: str, *arguments: object, **options: object) -> object:
        if name == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert _export(bert, tmp_path / "package") == 1
    message = capsys.readouterr().err
    assert "--format onnx needs the package 'onnxruntime'" in message
    assert "pip install 'forebay[export-onnx]'" in message and "loading" not in message


def _export(source: Path, package: Path, *more: str) -> int:
    request = ["--source", str(source), "--output", str(package), "--license", "CC0-1.0"]
    return command.main([*request, "--format", "onnx", *more])


def _about(package: Path) -> dict:
    return tomllib.loads((package / "model.toml").read_text())
