"""Folders that a download or an edit has damaged: each is refused in one line that names the file."""

import json
import shutil
from pathlib import Path

import pytest

from forebay.export import command
from forebay.export import tiny

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 90868376\n"


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of a tiny BERT; tests copy it."""
    work = tmp_path_factory.mktemp("source")
    tiny.build_model("bert", work)
    return work / "model"


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("model.safetensors", b"", "model.safetensors: the file is empty"),
        ("model.safetensors", LFS, "model.safetensors: this is a pointer of Git LFS"),
        ("tokenizer.json", LFS, "tokenizer.json: this is a pointer of Git LFS"),
        ("model.safetensors", b"garbage" * 100, "cannot load this model: "),
        ("model.safetensors", None, "a file of weights is damaged: download the model again"),
        ("config.json", b"[1]", "config.json: found list, expected an object of JSON"),
        ("config.json", b"{", "config.json: not valid JSON"),
        ("tokenizer.json", b"{}", "cannot load this model: "),
        ("config_sentence_transformers.json", b"[]", "found list, expected an object of JSON"),
    ],
)
def test_damaged_files_are_named(
    file: str,
    content: bytes | None,
    expected: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Path(shutil.copytree(bert, tmp_path / "source"))
    path = source / file
    path.write_bytes(path.read_bytes()[:1000] if content is None else content)
    assert _export(source, tmp_path / "package") == 1
    message = capsys.readouterr().err
    assert expected in message and "Traceback" not in message
    assert not (tmp_path / "package").exists()


def test_configurations_of_another_shape(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(bert, tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    for index, change in enumerate(({"hidden_size": "wide"}, {"hidden_size": 48}, {"vocab_size": []})):
        (source / "config.json").write_text(json.dumps({**config, **change}))
        assert _export(source, tmp_path / str(index)) == 1
        assert "Traceback" not in capsys.readouterr().err


def test_architectures_that_are_no_list_are_named(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(bert, tmp_path / "source"))
    (source / "modules.json").unlink()
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": "BertModel"}))
    assert _export(source, tmp_path / "package") == 1
    message = capsys.readouterr().err
    assert "architectures is 'BertModel', expected a list" in message


def test_a_file_is_no_folder(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _export(bert / "model.safetensors", tmp_path / "package") == 1
    assert "this is a file; give the folder that the model is in" in capsys.readouterr().err


def _export(source: Path, output: Path) -> int:
    return command.main(["--source", str(source), "--output", str(output)])
