"""A user's own program: with the columns that it is said to take and give, or refused with the reason."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from forebay.export import command
from forebay.export.reader import run


class Twice(torch.nn.Module):
    """Two inputs, three results, one of them an index."""

    def forward(
        self, x: torch.Tensor, n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each row by itself."""
        return x.flatten(1).sum(1), n * 2, (n % 2).long()


class Neighbours(torch.nn.Module):
    """What a row gives depends on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The difference to the mean of all rows."""
        return x - x.mean(0, keepdim=True)


def _linear() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def _save(module: torch.nn.Module, folder: Path) -> str:
    path = folder / "model.pt"
    torch.jit.save(torch.jit.script(module), path)
    return str(path)


def _export(source: str, *arguments: str) -> int:
    return command.main(["--source", source, *arguments])


def test_a_program_needs_no_more_than_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = _save(_linear(), tmp_path)
    assert _export(source, "--input", "x FLOAT[4]", "--output", "y FLOAT") == 0
    about = tomllib.loads((tmp_path / "model/model.toml").read_text())
    assert about["input"] == [{"name": "x", "type": "FLOAT[4]"}]
    assert about["output"] == [{"name": "y", "type": "FLOAT"}]
    rows = torch.randn((9, 4)).tolist()
    with torch.no_grad():
        expected = _linear()(torch.tensor(rows)).flatten().tolist()
    assert run(tmp_path / "model", {"x": rows}, 4)["y"] == pytest.approx(expected, abs=1e-6)


def test_several_columns_shapes_and_labels(tmp_path: Path) -> None:
    source, names = _save(Twice(), tmp_path), tmp_path / "names.txt"
    names.write_text("even\nodd\n", encoding="utf-8")
    columns = ["--input", "x FLOAT[2, 3]", "--input", "n BIGINT", "--output", "sum FLOAT"]
    columns += ["--output", "twice BIGINT", "--output", "kind STRING", "--labels", str(names)]
    package = tmp_path / "package"
    assert _export(source, *columns, "--output", str(package)) == 0
    about = tomllib.loads((package / "model.toml").read_text())
    assert about["input"][0] == {"name": "x", "type": "FLOAT[6]", "shape": [2, 3]}
    assert json.loads((package / "labels.json").read_text()) == ["even", "odd"]
    found = run(package, {"x": [[1.0] * 6, [2.0] * 6], "n": [3, 4]}, 2)
    assert found == {"sum": [6.0, 12.0], "twice": [6, 8], "kind": ["odd", "even"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--input", "x FLOAT[5]", "--output", "y FLOAT"), "it fails on [1, 5] of torch.float32: mat1"),
        (("--input", "x FLOAT[4]", "--output", "y INT"), "gives [1, 1] of torch.float32 for 1 rows"),
        (("--input", "x FLOAT[4]", "--output", "y FLOAT[2]"), "expected [1, 2] of torch.float32"),
        (
            ("--input", "x FLOAT[4]", "--output", "y FLOAT", "--output", "z FLOAT"),
            "it gives 1 results, and 2 --output are declared",
        ),
        (("--input", "x WORDS", "--output", "y FLOAT"), "the column 'x WORDS': expected a name and a type"),
        (("--input", "x FLOAT[4]"), "say what columns the program takes and gives"),
        (("--input", "x FLOAT[4]", "--output", "y STRING"), "pass --labels FILE"),
        (("--task", "embedding"), "this is a model for program"),
        (("--images",), "--images is for"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _save(_linear(), tmp_path)
    assert _export(source, *arguments, "--output", str(tmp_path / "package")) == 1
    message = capsys.readouterr().err
    assert expected in message and "Traceback" not in message
    assert not (tmp_path / "package").exists()


def test_rows_that_depend_on_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _save(Neighbours(), tmp_path)
    columns = ("--input", "x FLOAT[3]", "--output", "y FLOAT[3]")
    assert _export(source, *columns, "--output", str(tmp_path / "package")) == 1
    assert "the same row alone" in capsys.readouterr().err


def test_code_runs_only_if_the_user_trusts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "whole.pt"
    torch.save(_linear(), source)
    columns = ("--input", "x FLOAT[4]", "--output", "y FLOAT", "--output", str(tmp_path / "package"))
    assert _export(str(source), *columns) == 1
    assert "--trust-remote-code: reading it runs its code" in capsys.readouterr().err
    assert _export(str(source), *columns, "--trust-remote-code") == 0
    assert "warning: code that comes with the model runs with your rights" in capsys.readouterr().err
    torch.save(_linear().state_dict(), source)
    assert _export(str(source), *columns, "--trust-remote-code", "--force") == 1
    assert "weights alone are no model" in capsys.readouterr().err
