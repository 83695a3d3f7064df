"""Every task but embedding, end to end: tiny models against their own libraries."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forebay.export import determinism
from forebay.export import command
from forebay.export import program
from forebay.export import tiny
from forebay.export import tiny_tasks
from forebay.export.reader import run
from forebay.export.tiny_tasks import MODELS, Columns

SPARSE = "STRUCT<token STRING, weight FLOAT>[]"


@pytest.fixture(scope="session", params=MODELS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """A name of `MODELS`, its source folder, and the package made from it."""
    work = tmp_path_factory.mktemp(request.param)
    model = MODELS[request.param]
    (work / "source").mkdir()
    model.build(work / "source")
    assert _export(work / "source", work / "package", *model.arguments) == 0
    return request.param, work / "source", work / "package"


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of a tiny classifier; tests that change it copy it first."""
    source = tmp_path_factory.mktemp("classifier")
    MODELS["classification-bert"].build(source)
    return source


def test_package_gives_what_the_original_gives(exported: tuple[str, Path, Path]) -> None:
    name, source, package = exported
    inputs = MODELS[name].inputs
    expected = MODELS[name].expected(source, inputs)
    for rows in (1, 2, 7, 100):
        assert_close(run(package, inputs, rows), expected)


def test_rows_are_told_apart(exported: tuple[str, Path, Path]) -> None:
    name, source, _ = exported
    expected = MODELS[name].expected(source, MODELS[name].inputs)
    scores = next(expected[key] for key in ("scores", "score", "embedding", "weights") if key in expected)
    assert torch.tensor(_flat(scores)).std().item() > 0.005


def test_program_holds_no_device(exported: tuple[str, Path, Path]) -> None:
    _, _, package = exported
    loaded = torch.jit.load(package / "model.pt")
    assert program.baked_constants(loaded) == []
    kinds = {node.kind() for graph in program.graphs(loaded) for node in graph.nodes()}
    assert "aten::_convolution" not in kinds


def test_models_in_eval_mode_are_stable(exported: tuple[str, Path, Path]) -> None:
    # Not deterministic: how a row is rounded depends on the others of its batch.
    _, _, package = exported
    assert _about(package)["determinism"] == "stable"


def test_a_dropout_that_stays_on_is_volatile(
    classifier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from forebay.export import classifier as module

    def dropping(scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return best_of(torch.nn.functional.dropout(scores, 0.5, training=True))

    best_of = module.best_of
    monkeypatch.setattr(module, "best_of", dropping)
    assert _export(classifier, tmp_path / "package") == 0
    assert _about(tmp_path / "package")["determinism"] == "volatile"
    assert "it draws random numbers (aten::dropout)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda x: x * 2, ""),
        (lambda x: x + torch.rand_like(x), "aten::rand_like"),
        (lambda x: torch.bernoulli(x.sigmoid()), "aten::bernoulli"),
        (lambda x: torch.nn.functional.dropout(x, 0.5, training=False), ""),
        (lambda x: torch.nn.functional.dropout(x, 0.0, training=True), ""),
        (lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), ""),
        (
            lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
            "aten::scaled_dot_product_attention",
        ),
    ],
)
def test_random_operations_are_found(forward: object, expected: str, tmp_path: Path) -> None:
    from forebay.export.candidate import Candidate, Tensors

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    candidate = Candidate(Module().eval(), (), (), Tensors((4, 4)), "", lambda rows: 0)
    program.write_program(candidate, tmp_path / "model.pt")
    found, reason = determinism.determinism_of(candidate, tmp_path / "model.pt")
    assert found == ("volatile" if expected else "stable")
    assert expected in reason


def test_runs_that_differ_are_volatile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_is_random", lambda node: False)
    from forebay.export.candidate import Candidate, Tensors

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    candidate = Candidate(Module(), (), (), Tensors((4,)), "", lambda rows: 0)
    program.write_program(candidate, tmp_path / "model.pt")
    found = determinism.determinism_of(candidate, tmp_path / "model.pt")
    assert found == ("volatile", "two runs on the same input differ")


def test_labels_are_a_file_of_the_package(exported: tuple[str, Path, Path]) -> None:
    name, _, package = exported
    about = _about(package)
    labelled = [column for column in about["output"] if "labels" in column]
    if name.startswith(("rerank", "clip")) and "label" not in {c["name"] for c in about["output"]}:
        assert labelled == []
        return
    assert [column["type"] for column in labelled] in (["STRING"], ["STRING[]"], [SPARSE])
    if name.startswith("sparse"):
        # The whole vocabulary.
        tokens = json.loads((package / labelled[0]["labels"]).read_text())
        assert "[CLS]" in tokens and len(set(tokens)) == len(tokens)
        return
    labels = json.loads((package / "labels.json").read_text())
    wanted = tiny_tasks.TAGS if name.startswith("tokens") else tiny_tasks.LABELS
    if name != "rerank-electra":
        assert labels == list(wanted[: len(labels)])
    assert "labels.json" in about["files"]


def test_signatures(exported: tuple[str, Path, Path]) -> None:
    name, _, package = exported
    about = _about(package)
    types = {column["name"]: column["type"] for column in about["output"]}
    inputs = [column["name"] for column in about["input"]]
    if name.startswith("rerank"):
        assert inputs == ["query", "passage"]
        several = {"label": "STRING", "score": "FLOAT", "scores": "FLOAT[3]"}
        assert types == (several if name == "rerank-electra" else {"score": "FLOAT"})
        typed = "token_type_ids" in about["transform"]["arguments"]
        assert typed == (name in ("rerank-bert", "rerank-electra"))
    if name.startswith("sparse"):
        assert types == {"embedding": SPARSE}
    if name in ("classification-bert", "images-resnet"):
        assert types == {"label": "STRING", "score": "FLOAT", "scores": "FLOAT[3]"}
    pixels = {"name": "pixels", "type": "FLOAT[3072]", "shape": [3, 32, 32]}
    if name.startswith("images"):
        files = name.endswith("-files")
        assert about["input"] == [{"name": "image", "type": "BINARY"} if files else pixels]


def test_one_label_is_taken_for_a_cross_encoder(classifier: Path, tmp_path: Path) -> None:
    auto = tiny.transformers.AutoModelForSequenceClassification
    tiny.build_encoder("bert", tmp_path / "one", auto, num_labels=1)
    assert _export(tmp_path / "one", tmp_path / "package") == 0
    assert [column["name"] for column in _about(tmp_path / "package")["input"]] == [
        "query",
        "passage",
    ]
    # And the other way around, where asked for: two texts, three labels.
    assert _export(classifier, tmp_path / "pairs", "--task", "rerank") == 0
    assert _about(tmp_path / "pairs")["output"][0]["labels"] == "labels.json"


def test_cross_encoders_saved_by_older_versions_are_known(tmp_path: Path) -> None:
    auto = tiny.transformers.AutoModelForSequenceClassification
    tiny.build_encoder("bert", tmp_path / "old", auto, num_labels=1)
    config = tmp_path / "old/config.json"
    activation = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    config.write_text(json.dumps({**json.loads(config.read_text()), **activation}))
    assert _export(tmp_path / "old", tmp_path / "package") == 0
    inputs = MODELS["rerank-bert"].inputs
    found = run(tmp_path / "package", inputs, 7)
    # Without the sigmoid that one label has by default.
    assert min(found["score"]) < 0 or max(found["score"]) > 1
    assert_close(found, tiny_tasks._rank(tmp_path / "old", inputs))


def test_unsupported_architectures_are_told_what_is(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, architecture in enumerate(["LlamaForCausalLM", "GPT2LMHeadModel"]):
        work = tmp_path / str(index)
        source = _copy(classifier, work, architectures=[architecture])
        assert _export(source, work / "package") == 1
        message = capsys.readouterr().err
        assert f"{architecture} is not supported" in message
    assert "ForTokenClassification" in message and "ModernBERT" in message


def test_a_task_that_the_model_is_not_for(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _export(classifier, tmp_path / "package", "--task", "token-classification") == 1
    assert "this is a model for classification" in capsys.readouterr().err


def test_weights_that_are_missing_are_no_random_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build_encoder("bert", tmp_path / "plain")
    source = _copy(tmp_path / "plain", tmp_path, architectures=["BertForSequenceClassification"])
    assert _export(source, tmp_path / "package", "--task", "classification") == 1
    assert "lacks weights of BertForSequenceClassification: classifier" in capsys.readouterr().err


def test_labels_with_gaps_are_refused(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _copy(classifier, tmp_path, id2label={"0": "a", "2": "b", "3": "c"})
    assert _export(source, tmp_path / "package") == 1
    assert "expected 0 to 2" in capsys.readouterr().err


def test_normalizing_programs_take_plain_values(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    MODELS["images-resnet"].build(source)
    mean, deviation = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    (source / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": mean, "image_std": deviation, "size": {"shortest_edge": 32}})
    )
    assert _export(source, tmp_path / "package", "--normalize") == 0
    plain = torch.rand((3, 3, 32, 32))
    wanted = (plain - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None]
    found = run(tmp_path / "package", {"pixels": plain.flatten(1).tolist()}, 3)
    assert_close(found, tiny_tasks._classify_images(source, {"pixels": wanted.flatten(1).tolist()}))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vit_b_16"])
def test_torchvision_with_a_file_of_weights(name: str, tmp_path: Path) -> None:
    from torchvision import models

    torch.manual_seed(3)
    model = models.get_model(name, num_classes=3).eval()
    torch.nn.init.normal_([p for p in model.parameters() if p.dim() == 2][-1], std=0.5)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "labels.txt").write_text("\n".join(tiny_tasks.LABELS))
    files = ("--weights", str(tmp_path / "weights.safetensors"), "--labels")
    source = f"torchvision/{name}"
    assert _export(source, tmp_path / "package", *files, str(tmp_path / "labels.txt")) == 0
    pixels = torch.randn((2, 3, 224, 224))
    with torch.no_grad():
        scores = model(pixels).softmax(-1)
    found = run(tmp_path / "package", {"pixels": pixels.flatten(1).tolist()}, 2)
    assert torch.allclose(torch.tensor(found["scores"]), scores, atol=1e-5)
    assert found["label"] == [tiny_tasks.LABELS[i] for i in scores.argmax(1)]


def test_torchvision_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _export("torchvision/resnet19", tmp_path / "package") == 1
    assert "no model of this name" in capsys.readouterr().err
    (tmp_path / "weights.pth").write_bytes(b"nothing")
    weights = ("--weights", str(tmp_path / "weights.pth"))
    assert _export("torchvision/resnet18", tmp_path / "package", *weights) == 1
    assert "its weights cannot be loaded" in capsys.readouterr().err


def assert_close(found: Columns, expected: Columns) -> None:
    """Equal names and texts, and numbers within 1e-5."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        one, other = _flat(found[name]), _flat(values)
        assert [len(v) if isinstance(v, list) else 0 for v in found[name]] == [
            len(v) if isinstance(v, list) else 0 for v in values
        ]
        assert _tokens(found[name]) == _tokens(values)
        if other and isinstance(other[0], str):
            assert one == other
        else:
            assert one == pytest.approx(other, abs=1e-5, rel=0)


def _tokens(rows: list) -> list[list[str]]:
    """Of lists of structs."""
    lists = (row for row in rows if isinstance(row, list))
    return [[one["token"] for one in row if isinstance(one, dict)] for row in lists]


def _flat(values: object) -> list:
    """The numbers and texts in it; of structs the weights."""
    if isinstance(values, dict):
        return [values["weight"]]
    return [x for v in values for x in _flat(v)] if isinstance(values, list) else [values]


def _about(package: Path) -> dict:
    return tomllib.loads((package / "model.toml").read_text())


def _export(source: Path | str, output: Path, *more: str) -> int:
    return command.main(["--source", str(source), "--output", str(output), *more])


def _copy(source: Path, tmp_path: Path, **changed: object) -> Path:
    """A copy with other values in its config.json."""
    copy = Path(shutil.copytree(source, tmp_path / "source"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changed}))
    return copy
