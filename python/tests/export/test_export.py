"""The exporter end to end: tiny models of every architecture, and each way it can be refused."""

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer

from forebay.export import command
from forebay.export import program
from forebay.export import tiny
from forebay.export import unmasked
from forebay.export.encoder import embedding
from forebay.export.errors import ExportError
from forebay.export.reference import embed
from forebay.export.reader import run
from forebay.export.texts import MIXED


# How many masks attention takes where nothing is padded. Every other layer of this ModernBERT attends to tokens
# nearby; the last three compute attention by themselves, so that there is no method.
MASKED_AFTER = {"modernbert": 1, "mpnet": None, "gpt-neo": None, "gptj": None}
WORDS = ["water", "turbine", "forebay", "dam"]


@pytest.fixture(scope="session", params=tiny.ARCHITECTURES)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A source folder and the package made from it."""
    work = tmp_path_factory.mktemp(request.param)
    tiny.build_model(request.param, work)
    assert _export(work / "model", work / "package", "--license", "CC0-1.0") == 0
    return work / "model", work / "package"


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of a tiny BERT; tests that change it copy it first."""
    work = tmp_path_factory.mktemp("source")
    tiny.build_model("bert", work)
    return work / "model"


def test_package_gives_the_embeddings_of_sentence_transformers(exported: tuple[Path, Path]) -> None:
    source, package = exported
    expected = embed(source, MIXED)
    for rows in (1, 2, 7, len(MIXED)):
        found = _run(package, MIXED, rows)
        assert np.abs(found - expected).max() <= 1e-5


def test_rows_without_padding_are_what_the_library_gives(exported: tuple[Path, Path]) -> None:
    source, package = exported
    loaded = torch.jit.load(str(package / "model.pt"))
    # As pytest names the folder of a kind.
    masked = MASKED_AFTER.get(source.parent.name[:-1], 0)
    if masked is None:
        assert not hasattr(loaded, unmasked.METHOD)
        return
    assert unmasked._masked(loaded, "forward") > masked
    assert unmasked._masked(loaded, unmasked.METHOD) == masked
    model = SentenceTransformer(str(source), device="cpu")
    by_length: dict[int, list[str]] = {}
    for text in (f"{a} {b}" for a in WORDS for b in WORDS):
        by_length.setdefault(len(model.tokenizer(text)["input_ids"]), []).append(text)
    for texts in by_length.values():
        ids = model.tokenizer(texts, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found = getattr(loaded, unmasked.METHOD)(ids).numpy()
        assert np.abs(found - model.encode(texts)).max() <= 1e-5


def test_embeddings_tell_texts_apart(exported: tuple[Path, Path]) -> None:
    source, _ = exported
    first, other = embed(source, [MIXED[2], MIXED[14]])
    assert np.abs(first - other).max() > 0.01


def test_program_holds_no_device(exported: tuple[Path, Path]) -> None:
    _, package = exported
    assert program.baked_constants(torch.jit.load(package / "model.pt")) == []


def test_a_plain_trace_is_refused(bert: Path, tmp_path: Path) -> None:
    candidate = embedding(bert, None)
    example = candidate.transform.example(1, 4)
    traced = torch.jit.trace(candidate.module, example, check_trace=False)
    assert "device cpu" in program.baked_constants(traced)
    traced.save(str(tmp_path / "model.pt"))
    with pytest.raises(ExportError, match="runs on the CPU only"):
        program.check_moves(candidate, tmp_path / "model.pt")


def test_description_states_hashes_and_signature(exported: tuple[Path, Path]) -> None:
    source, package = exported
    about = tomllib.loads((package / "model.toml").read_text())
    files = {path.name for path in package.iterdir()} - {"model.toml"}
    assert files == {"model.pt", "tokenizer.json"} == set(about["files"])
    for name, digest in about["files"].items():
        assert hashlib.sha256((package / name).read_bytes()).hexdigest() == digest
    dimensions = embed(source, ["a"]).shape[1]
    assert about["output"] == [{"name": "embedding", "type": f"FLOAT[{dimensions}]"}]
    assert about["transform"]["max_tokens"] == tiny.MAX_TOKENS
    assert about["license"] == "CC0-1.0"


def test_plain_encoder_gets_mean_pooling(tmp_path: Path) -> None:
    tiny.build_encoder("bert", tmp_path / "plain")
    assert _export(tmp_path / "plain", tmp_path / "package") == 0
    expected = embed(tmp_path / "plain", MIXED)
    assert np.abs(_run(tmp_path / "package", MIXED, 7) - expected).max() <= 1e-5
    about = tomllib.loads((tmp_path / "package/model.toml").read_text())
    assert (about["name"], about["license"]) == ("plain", "NOASSERTION")


def test_lower_casing_of_the_model_is_in_the_tokenizer(tmp_path: Path) -> None:
    tiny.build_encoder("roberta", tmp_path / "encoder")
    transformer = Transformer(str(tmp_path / "encoder"), do_lower_case=True)
    model = SentenceTransformer(modules=[transformer, Pooling(tiny.HIDDEN, "mean")], device="cpu")
    model.save(str(tmp_path / "model"))
    config = tmp_path / "model/sentence_bert_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "do_lower_case": True}))
    assert _export(tmp_path / "model", tmp_path / "package") == 0
    tokenizer = Tokenizer.from_file(str(tmp_path / "package/tokenizer.json"))
    assert tokenizer.encode("UPPER").ids == tokenizer.encode("upper").ids


def test_positions_limit_the_tokens(tmp_path: Path) -> None:
    tiny.build_encoder("roberta", tmp_path / "plain")
    config = tmp_path / "plain/tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 1000}))
    assert _export(tmp_path / "plain", tmp_path / "package") == 0
    about = tomllib.loads((tmp_path / "package/model.toml").read_text())
    # RoBERTa numbers positions from padding_idx + 1 = 2.
    assert about["transform"]["max_tokens"] == tiny.POSITIONS - 2


def test_license_comes_from_the_readme(bert: Path, tmp_path: Path) -> None:
    source = _copy(bert, tmp_path)
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Model\n")
    assert _export(source, tmp_path / "package") == 0
    assert tomllib.loads((tmp_path / "package/model.toml").read_text())["license"] == "Apache-2.0"


def test_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _export(tmp_path / "absent", tmp_path / "package") == 1
    assert "no such folder" in capsys.readouterr().err


def test_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert _export(tmp_path / "empty", tmp_path / "package") == 1
    assert "not a model folder" in capsys.readouterr().err


def test_folder_without_weights(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _copy(bert, tmp_path)
    (source / "model.safetensors").unlink()
    assert _export(source, tmp_path / "package") == 1
    assert "cannot load this model" in capsys.readouterr().err


def test_unsupported_module(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _copy(bert, tmp_path)
    stages = json.loads((source / "modules.json").read_text())
    stages[1]["type"] = "sentence_transformers.models.LSTM"
    (source / "modules.json").write_text(json.dumps(stages))
    assert _export(source, tmp_path / "package") == 1
    assert "module 'LSTM' is not supported" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


def test_existing_output_needs_force(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _export(bert, tmp_path / "package") == 0
    assert _export(bert, tmp_path / "package") == 1
    assert "pass --force" in capsys.readouterr().err
    assert _export(bert, tmp_path / "package", "--force") == 0


def test_force_never_replaces_other_folders(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/dear.txt").write_text("keep me")
    assert _export(bert, tmp_path / "letters", "--force") == 1
    assert "not a model package" in capsys.readouterr().err


def test_a_program_that_differs_leaves_nothing(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "TOLERANCE", -1.0)
    assert _export(bert, tmp_path / "out/package") == 1
    assert "differs from the model" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def _export(source: Path, output: Path, *more: str) -> int:
    return command.main(["--source", str(source), "--output", str(output), *more])


def _copy(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "source"))


def _run(package: Path, texts: tuple[str, ...], rows: int) -> np.ndarray:
    return np.asarray(run(package, {"text": list(texts)}, rows)["embedding"], dtype="<f4")
