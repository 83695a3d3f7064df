"""What would give other values than the model's own library: exported right, or refused by name."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, processors

from forebay.export import command
from forebay.export import encoder
from forebay.export import precision
from forebay.export import tiny
from forebay.export.reader import run
from forebay.export.texts import MIXED
from forebay.export.tiny_tasks import MODELS

CLASSIFIER = transformers.AutoModelForSequenceClassification


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of a tiny BERT; tests that change it copy it first."""
    work = tmp_path_factory.mktemp("source")
    tiny.build_model("bert", work)
    return work / "model"


def test_a_program_that_is_not_what_the_library_computes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The trace agrees with the module; it is the module that passes types which the library does not.
    tiny.build_model("gpt2", tmp_path)
    monkeypatch.setattr(encoder, "takes_types", lambda model, features: True)
    assert _export(tmp_path / "model", tmp_path / "package") == 1
    message = capsys.readouterr().err
    assert "the package differs from SentenceTransformer.encode by" in message
    assert not (tmp_path / "package").exists()


def test_dimensions_are_cut_as_the_model_says(bert: Path, tmp_path: Path) -> None:
    source = _copy(bert, tmp_path)
    _change(source / "config_sentence_transformers.json", truncate_dim=8)
    assert _export(source, tmp_path / "package") == 0
    [output] = _about(tmp_path / "package")["output"]
    assert output["type"] == "FLOAT[8]"
    expected = SentenceTransformer(str(source), device="cpu").encode(list(MIXED))
    found = run(tmp_path / "package", {"text": list(MIXED)}, 7)["embedding"]
    assert torch.tensor(found) == pytest.approx(torch.tensor(expected), abs=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_half_precisions_are_recorded(architecture: str, tmp_path: Path) -> None:
    tiny.build_model(architecture, tmp_path)
    assert _export(tmp_path / "model", tmp_path / "package") == 0
    precisions = _about(tmp_path / "package")["precisions"]
    assert list(precisions) == ["bf16", "fp16"]

    def encoded(kind: torch.dtype) -> torch.Tensor:
        model = SentenceTransformer(str(tmp_path / "model"), device="cpu").to(kind)
        return model.encode(list(MIXED), convert_to_tensor=True).float()

    expected = encoded(torch.float32)
    for name, found in precisions.items():
        off = (encoded(precision.HALVES[name]) - expected).abs().max().item()
        # Of other texts, so of the same size only.
        assert off / 4 <= found <= 4 * off


PROMPTS = {"query": "the quick: ", "passage": "water: ", "plain": ""}


@pytest.mark.parametrize("default", [None, "query"])
def test_prompts_are_those_of_the_model(default: str | None, bert: Path, tmp_path: Path) -> None:
    source = _copy(bert, tmp_path)
    config = source / "config_sentence_transformers.json"
    _change(config, prompts=PROMPTS, default_prompt_name=default)
    assert _export(source, tmp_path / "package") == 0
    about = _about(tmp_path / "package")
    assert about.get("prompt") == default
    assert PROMPTS.items() <= about["prompts"].items()
    model = SentenceTransformer(str(source), device="cpu")
    for name in (None, *PROMPTS):
        expected = model.encode(list(MIXED), prompt_name=name)
        found = run(tmp_path / "package", {"text": list(MIXED)}, 7, name)["embedding"]
        assert torch.tensor(found) == pytest.approx(torch.tensor(expected), abs=1e-5)
    bare = model.encode(list(MIXED), prompt="")
    found = run(tmp_path / "package", {"text": list(MIXED)}, 7, "")["embedding"]
    assert torch.tensor(found) == pytest.approx(torch.tensor(bare), abs=1e-5)
    assert abs(bare - model.encode(list(MIXED), prompt_name="query")).max() > 0.01


def test_prompts_of_rerankers_come_before_queries(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    MODELS["rerank-bert"].build(source)
    _change(source / "config_sentence_transformers.json", prompts=PROMPTS)
    assert _export(source, tmp_path / "package") == 0
    inputs = MODELS["rerank-bert"].inputs
    pairs = list(zip(inputs["query"], inputs["passage"], strict=True))
    expected = CrossEncoder(str(source), device="cpu").predict(pairs, prompt_name="query")
    found = run(tmp_path / "package", inputs, 7, "query")["score"]
    assert found == pytest.approx(expected.tolist(), abs=1e-5)


def test_models_without_prompts_hold_none(bert: Path, tmp_path: Path) -> None:
    assert _export(bert, tmp_path / "package") == 0
    assert {"prompt", "prompts"}.isdisjoint(_about(tmp_path / "package"))


def test_prompts_that_pooling_leaves_out(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _copy(bert, tmp_path)
    _change(source / "config_sentence_transformers.json", prompts=PROMPTS)
    _change(source / "1_Pooling/config.json", include_prompt=False)
    assert _export(source, tmp_path / "package") == 1
    assert "leaves the tokens of its prompts out of its pooling" in capsys.readouterr().err


def test_texts_without_any_token(tmp_path: Path) -> None:
    # GPT-2's own tokenizer puts nothing around a text, so an empty one is nothing to it.
    tiny.build_encoder("gpt2", tmp_path / "gpt2")
    file = tmp_path / "gpt2/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.ByteLevel()
    tokenizer.save(str(file))
    assert _export(tmp_path / "gpt2", tmp_path / "package") == 0


@pytest.mark.parametrize("task", ["embedding", "classification", "rerank", "token-classification"])
def test_folders_without_a_tokenizer(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _plain(task, "bert", tmp_path / "source")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (source / file).unlink()
    assert _export(source, tmp_path / "package", "--task", task) == 1
    message = capsys.readouterr().err
    assert "the tokenizer knows no words" in message and "vocab.txt" in message


@pytest.mark.parametrize("task", ["embedding", "classification", "rerank", "token-classification"])
def test_tokenizers_with_more_tokens_than_the_model(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _plain(task, "bert", tmp_path / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source))
    rows = len(tokenizer)
    tokenizer.add_tokens(["zeppelin", "xylophone"])
    tokenizer.save_pretrained(source)
    assert _export(source, tmp_path / "package", "--task", task) == 1
    message = capsys.readouterr().err
    assert f"2 tokens that the model has no embedding for: from 'zeppelin' ({rows}) on" in message


def test_padding_that_the_model_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _plain("embedding", "bert", tmp_path / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source))
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<filling>"})
    tokenizer.save_pretrained(source)
    assert _export(source, tmp_path / "package") == 1
    message = capsys.readouterr().err
    assert f"fills batches with '<filling>' ({rows}), and the model has embeddings for" in message


def test_padding_that_the_model_takes_for_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A decoder classifies by the last token that is not padding.
    source = _plain("classification", "gpt2", tmp_path / "source")
    _change(source / "config.json", pad_token_id=5)
    assert _export(source, tmp_path / "package", "--task", "classification") == 1
    message = capsys.readouterr().err
    assert "takes token 5 for padding (pad_token_id)" in message
    assert "fills batches with '<pad>' (1): make them agree" in message


def test_padding_ids_that_do_not_matter_may_differ(tmp_path: Path) -> None:
    # As in multilingual MiniLM: a BERT, whose config.json says 0, with another tokenizer.
    source = _plain("embedding", "bert", tmp_path / "source")
    _change(source / "config.json", pad_token_id=3)
    assert _export(source, tmp_path / "package") == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--max-tokens", "0"), "--max-tokens 0: expected 3 to 66"),
        (("--max-tokens", "2"), "2 of each input are special tokens"),
        (("--max-tokens", "100000"), "the model takes 66 tokens at the most"),
        (("--images",), "--images is for image-classification"),
        (("--normalize",), "--normalize is for image-classification"),
        (("--weights", "w.pth"), "--weights is for torchvision/NAME"),
        (("--labels", "labels.txt"), "--labels is for torchvision/NAME"),
    ],
)
def test_options_that_would_not_count(
    arguments: tuple[str, ...],
    expected: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _export(bert, tmp_path / "package", *arguments) == 1
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


def test_tokens_do_not_count_for_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _export("torchvision/resnet18", tmp_path / "package", "--max-tokens", "8") == 1
    assert "this is a model for image-classification" in capsys.readouterr().err


def test_fewer_tokens_are_what_was_asked_for(bert: Path, tmp_path: Path) -> None:
    assert _export(bert, tmp_path / "package", "--max-tokens", "16") == 0
    assert _about(tmp_path / "package")["transform"]["max_tokens"] == 16


def _plain(task: str, architecture: str, folder: Path) -> Path:
    """A plain folder of transformers for the task."""
    kinds = {
        "embedding": transformers.AutoModel,
        "token-classification": transformers.AutoModelForTokenClassification,
    }
    tiny.build_encoder(architecture, folder, kinds.get(task, CLASSIFIER))
    return folder


def _export(source: Path | str, output: Path, *more: str) -> int:
    return command.main(["--source", str(source), "--output", str(output), *more])


def _about(package: Path) -> dict:
    return tomllib.loads((package / "model.toml").read_text())


def _copy(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "source"))


def _change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
