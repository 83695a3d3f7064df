"""Programs as native code: what is written, that it computes the same, and each way it can be refused."""

import hashlib
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.export import command, compiled, tiny
from forebay.export.candidate import Candidate, Column, Values
from forebay.export.encoder import embedding
from forebay.export.errors import ExportError
from forebay.export.program import test_program as checked
from forebay.export.program import write_program
from forebay.export.precision import precisions_of
from forebay.export.reader import run
from forebay.export.reference import embed
from forebay.export.texts import MIXED


class Layer(torch.nn.Module):
    """`[rows, 4]` to `[rows, 3]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class OfThree(Layer):
    """Takes three rows, whatever it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(3, 4))


def candidate_of(module: torch.nn.Module) -> Candidate:
    """A model of vectors of four."""
    columns = (Column("x", "FLOAT[4]"),)
    return Candidate(
        module=module.eval(),
        inputs=columns,
        outputs=(Column("y", "FLOAT[3]"),),
        transform=Values(columns),
        description="",
        activation_bytes=lambda rows: rows,
    )


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source folder of a tiny BERT, and its package with native code."""
    work = tmp_path_factory.mktemp("compiled")
    tiny.build_model("bert", work)
    arguments = ["--source", work / "model", "--output", work / "package", "--license", "CC0-1.0", "--compile"]
    assert command.main([str(argument) for argument in arguments]) == 0
    return work / "model", work / "package"


def test_the_package_says_what_each_program_is_for(exported: tuple[Path, Path]) -> None:
    _, package = exported
    about = tomllib.loads((package / "model.toml").read_text())
    vectors = torch.backends.cpu.get_cpu_capability().lower()
    file = f"model-cpu-{vectors}-fp32.pt2"
    expected = {
        "program": file,
        "architecture": f"cpu-{vectors}",
        "precision": "fp32",
        "torch": torch.__version__.partition("+")[0],
    }
    assert about["runtime"] == {"kind": "aoti", "program": "model.pt", "compiled": [expected]}
    assert about["files"][file] == hashlib.sha256((package / file).read_bytes()).hexdigest()


def test_native_code_gives_the_same_for_one_row_and_lengths_that_no_example_had(
    exported: tuple[Path, Path],
) -> None:
    source, package = exported
    candidate = embedding(source, None)
    program = torch._inductor.aoti_load_package(str(next(package.glob("*.pt2"))))
    for rows in (1, 2, 3, 5, 64):
        for length in (2, 5, 6, 7, 31, candidate.transform.max_tokens):
            arguments = candidate.transform.example(rows, length)
            with torch.no_grad():
                expected = candidate.module(*arguments)
                found = program(*arguments)
            found = found[0] if isinstance(found, list | tuple) else found
            assert (found - expected).abs().max() <= 1e-5, (rows, length)


def test_the_torchscript_beside_it_is_as_ever(exported: tuple[Path, Path]) -> None:
    source, package = exported
    found = run(package, {"text": list(MIXED)}, 7)["embedding"]
    assert np.abs(np.asarray(found) - embed(source, MIXED)).max() <= 1e-5


def test_half_precision_is_compiled_as_torchscript_computes_it(tmp_path: Path) -> None:
    candidate = candidate_of(Layer())
    write_program(candidate, tmp_path / "model.pt")
    checked(candidate, tmp_path / "model.pt", "stable")
    held = precisions_of(candidate, tmp_path / "model.pt")
    target = compiled.Target("cpu", "bf16")
    about, worst = compiled.write_compiled(candidate, tmp_path, target, "stable", held)
    assert about.precision == "bf16" and (tmp_path / about.program).exists()
    assert 0 < worst <= compiled.HALF_FACTOR * held["bf16"]
    with pytest.raises(ExportError, match="differs from 32-bit floats by"):
        compiled.write_compiled(candidate, tmp_path, target, "stable", {"bf16": worst / 100})


def test_a_program_that_fixes_the_number_of_rows_is_refused(tmp_path: Path) -> None:
    target = compiled.Target("cpu", "fp32")
    with pytest.raises(ExportError, match="it takes 3 rows of an example for those of all batches"):
        compiled.write_compiled(candidate_of(OfThree()), tmp_path, target, "stable", {})
    assert not list(tmp_path.glob("*.pt2"))


def test_code_is_for_all_cpus_with_these_vectors() -> None:
    from torch._inductor import cpp_builder, cpu_vec_isa

    _, model = compiled.VECTORS[torch.backends.cpu.get_cpu_capability()]
    with compiled._of_all_such_cpus():
        flags, _ = cpp_builder._get_optimization_cflags("g++")
        assert f"march={model}" in flags and "march=native" not in flags
        vectors = str(cpu_vec_isa.pick_vec_isa())
    assert vectors == torch.backends.cpu.get_cpu_capability().lower()


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--format", "onnx"], {}, "--compile is for what libtorch runs"),
        ([], {"CXX": "no-such-compiler"}, "there is no no-such-compiler: install one"),
    ],
)
def test_what_cannot_be_compiled_is_refused_first(
    arguments: list[str],
    variables: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = ["--source", str(tmp_path), "--output", str(tmp_path / "package"), "--compile", *arguments]
    assert command.main(given) == 1
    assert expected in capsys.readouterr().err


def test_torchscript_is_not_compiled(tmp_path: Path) -> None:
    script = torch.jit.script(Layer().eval())
    target = compiled.Target("cpu", "fp32")
    with pytest.raises(ExportError, match="saved whole by torch.save"):
        compiled.write_compiled(candidate_of(script), tmp_path, target, "stable", {})
