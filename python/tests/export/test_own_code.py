"""Models that bring code of their own, and code that fails: what the user hears of it."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from forebay.export import command, tiny
from forebay.export.reader import run
from forebay.export.texts import MIXED

CODE = """
import transformers


class OwnConfig(transformers.BertConfig):
    model_type = "own"


class OwnModel(transformers.BertModel):
    config_class = OwnConfig
"""


def _own(folder: Path) -> Path:
    tiny.build_encoder("bert", folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    config |= {"model_type": "own", "architectures": ["OwnModel"], "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE)
    return folder


def test_code_of_a_model_runs_only_if_the_user_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = tmp_path / "modules"
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    source, package = _own(tmp_path / "source"), tmp_path / "package"
    arguments = ["--source", str(source), "--output", str(package)]
    assert command.main(arguments) == 1
    assert "if you trust its authors, pass --trust-remote-code" in capsys.readouterr().err
    assert not modules.exists() and not package.exists()
    assert command.main([*arguments, "--trust-remote-code"]) == 0
    assert "warning: code that comes with the model runs" in capsys.readouterr().err
    # The code is BERT's under another name.
    tiny.build_encoder("bert", tmp_path / "same")
    model = transformers.AutoModel.from_pretrained(str(tmp_path / "same")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "same"))
    features = tokenizer([MIXED[2]], return_tensors="pt")
    with torch.no_grad():
        expected = model(**features).last_hidden_state.mean(1)[0]
    found = run(package, {"text": [MIXED[2]]}, 1)["embedding"][0]
    assert torch.tensor(found) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("when", ["when it is traced", "always"])
def test_what_fails_names_its_module(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build_model("bert", tmp_path)
    output = transformers.models.bert.modeling_bert.BertSelfOutput
    forward = output.forward

    def fails(self: torch.nn.Module, *arguments: torch.Tensor) -> torch.Tensor:
        if when == "always" or torch.jit.is_tracing():
            raise ValueError("no heads are left\nand more that nobody reads")
        return forward(self, *arguments)

    monkeypatch.setattr(output, "forward", fails)
    arguments = ["--source", str(tmp_path / "model"), "--output", str(tmp_path / "package")]
    assert command.main(arguments) == 1
    message = capsys.readouterr().err
    assert " in BertSelfOutput" in message and "no heads are left" in message
    assert "Traceback" not in message and "nobody reads" not in message
    if when != "always":
        assert "BertSelfOutput (stages.0.model.encoder.layer.0.attention.output)" in message
