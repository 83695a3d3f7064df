"""Tiny models whose outputs are lists though they read no tokens: objects in images, and what is said.

As those of `tiny_tasks.py`; `LISTS` are fixtures of Rust tests, too.
"""

import json
from pathlib import Path

import torch
import transformers

from .tiny_tasks import Columns, Tiny

SIDE = 64
DETECTED = {"id2label": {0: "cat", 1: "dog"}}
RATE, SAMPLES = 16_000, 4_000
LETTERS = "abcdefg"


def build_yolos(folder: Path) -> None:
    """A detector that is all transformer."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"image_size": [SIDE, SIDE], "patch_size": 8, "num_detection_tokens": 6, "initializer_range": 0.5}
    save_detector(transformers.YolosConfig(**sizes, **DETECTED), folder, "YolosImageProcessor")


def save_detector(config: transformers.PretrainedConfig, folder: Path, processor: str) -> None:
    """One of those that choose a class for each query, or none."""
    torch.manual_seed(4)
    model = transformers.AutoModelForObjectDetection.from_config(config)
    head = [part for part in model.class_labels_classifier.modules() if isinstance(part, torch.nn.Linear)]
    with torch.no_grad():  # So that some queries are of an object, and some of none.
        head[-1].weight.mul_(0.2)
        head[-1].bias.copy_(torch.tensor([0.5, 0.0, -0.5]))
    model.save_pretrained(folder)
    about = {"image_processor_type": processor, "size": {"height": SIDE, "width": SIDE}, "do_pad": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(about), encoding="utf-8")


def _detect(folder: Path, inputs: Columns) -> Columns:
    """What the library makes of pixels, in shares of the image's sides."""
    processor = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    model = transformers.AutoModelForObjectDetection.from_pretrained(str(folder)).eval()
    sides = ("lefts", "tops", "rights", "bottoms")
    outputs: Columns = {"labels": [], "scores": [], **{side: [] for side in sides}}
    for values in inputs["pixels"]:
        with torch.no_grad():
            found = model(torch.tensor(values).reshape(1, 3, SIDE, SIDE))
        [kept] = processor.post_process_object_detection(found, 0.1, torch.tensor([[1, 1]]))
        outputs["labels"].append([DETECTED["id2label"][label] for label in kept["labels"].tolist()])
        outputs["scores"].append(kept["scores"].tolist())
        for at, side in enumerate(sides):
            outputs[side].append(kept["boxes"][:, at].tolist())
    assert any(outputs["labels"])
    return outputs


def _pixels() -> list[list[float]]:
    generator = torch.Generator().manual_seed(5)
    smooth = torch.nn.functional.interpolate(torch.randn((5, 3, 5, 5), generator=generator), (SIDE, SIDE))
    return smooth.flatten(1).tolist()


def _build_ctc(folder: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"conv_dim": [16, 16], "conv_kernel": [10, 8], "conv_stride": [5, 8], "initializer_range": 0.3}
    sizes |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS]
    torch.manual_seed(6)
    config = transformers.Wav2Vec2Config(**sizes, vocab_size=len(letters), pad_token_id=0)
    model = transformers.Wav2Vec2ForCTC(config)
    with torch.no_grad():  # So that there is more than one letter.
        model.lm_head.weight.mul_(4.0)
    model.save_pretrained(folder)
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({letter: at for at, letter in enumerate(letters)}), encoding="utf-8")
    transformers.Wav2Vec2CTCTokenizer(str(vocabulary)).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True).save_pretrained(folder)


def _transcribe(folder: Path, inputs: Columns) -> Columns:
    """What the library's model and its tokenizer make of sound."""
    model = transformers.AutoModelForCTC.from_pretrained(str(folder)).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    outputs: Columns = {"characters": [], "starts": []}
    for samples in inputs["samples"]:
        values = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values
        with torch.no_grad():
            logits = model(values).logits[0]
        said = tokenizer.decode(logits.argmax(-1), output_char_offsets=True)["char_offsets"]
        step = model.config.inputs_to_logits_ratio / RATE
        outputs["characters"].append([character["char"] for character in said])
        outputs["starts"].append([character["start_offset"] * step for character in said])
    assert len({character for row in outputs["characters"] for character in row}) > 2
    return outputs


def _sound() -> list[list[float]]:
    noise = torch.randn((5, SAMPLES), generator=torch.Generator().manual_seed(9))
    return (noise * torch.tensor([0.1, 0.5, 0.02, 1.0, 0.3])[:, None]).tolist()


LISTS = {
    "detection-yolos": Tiny(build_yolos, {"pixels": _pixels()}, _detect),
    "transcription-wav2vec2": Tiny(
        _build_ctc, {"samples": _sound()}, _transcribe, ("--seconds", str(SAMPLES / RATE))
    ),
}
