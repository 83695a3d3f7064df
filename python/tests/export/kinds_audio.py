"""The families of sound that kinds.py tries."""

import functools
import json
from pathlib import Path

import torch
import transformers

from forebay.export import tiny
from forebay.export.reader import Columns
from forebay.export.texts import MIXED
from kinds import Kind

SECONDS, RATE = 0.5, 16_000
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "initializer_range": 0.2,
    "classifier_proj_size": 16,
    "pad_token_id": 0,
}
LABELS = {0: "speech", 1: "music", 2: "noise"}
CHARACTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"]
FAMILIES = {
    "wav2vec2": "Wav2Vec2",
    "hubert": "Hubert",
    "wavlm": "WavLM",
    "unispeech-sat": "UniSpeechSat",
    "data2vec-audio": "Data2VecAudio",
}


def _save(family: str, head: str, folder: Path) -> None:
    name = FAMILIES[family]
    more = {"id2label": LABELS, "vocab_size": len(CHARACTERS)}
    torch.manual_seed(4)
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    getattr(transformers, f"{name}{head}")(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    if head == "ForCTC":
        file = folder / "vocab.json"
        file.write_text(json.dumps({name: index for index, name in enumerate(CHARACTERS)}))
        transformers.Wav2Vec2CTCTokenizer(str(file)).save_pretrained(folder)


def _sound() -> Columns:
    """Noise that is loud and soft, off its middle, and silence behind it."""
    generator = torch.Generator().manual_seed(6)
    noise = torch.randn((6, int(SECONDS * RATE)), generator=generator)
    loudness = torch.tensor([1.0, 0.01, 0.3, 2.0, 0.1, 0.5])[:, None]
    sound = noise * loudness + torch.tensor([0.0, 0.1, -0.3, 0.0, 0.02, 0.0])[:, None]
    sound[2:4, 3000:] = 0.0
    return {"samples": sound.tolist()}


def _pipeline(folder: Path, inputs: Columns) -> Columns:
    pipeline = transformers.pipeline("audio-classification", str(folder), device="cpu")
    outputs: Columns = {"label": [], "score": [], "scores": []}
    for samples in inputs["samples"]:
        sound = {"raw": torch.tensor(samples).numpy(), "sampling_rate": RATE}
        ranked = pipeline(sound, top_k=len(LABELS))
        scores = {entry["label"]: entry["score"] for entry in ranked}
        outputs["label"].append(ranked[0]["label"])
        outputs["score"].append(ranked[0]["score"])
        outputs["scores"].append([scores[label] for label in LABELS.values()])
    return outputs


def _transcribe(folder: Path, inputs: Columns) -> Columns:
    model = transformers.AutoModelForCTC.from_pretrained(str(folder)).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    outputs: Columns = {"characters": []}
    for samples in inputs["samples"]:
        sound = torch.tensor(samples).numpy()
        values = extractor(sound, sampling_rate=RATE, return_tensors="pt").input_values
        with torch.no_grad():
            best = model(values).logits[0].argmax(-1)
        said = tokenizer.decode(best, output_char_offsets=True)["char_offsets"]
        outputs["characters"].append([character["char"] for character in said])
    assert len({character for row in outputs["characters"] for character in row}) > 2
    return outputs


def _kind(family: str, task: str) -> Kind:
    head = "ForCTC" if task == "transcription" else "ForSequenceClassification"
    build = functools.partial(_save, family, head)
    call = ("model and tokenizer", _transcribe)
    if task == "audio-classification":
        call = ("audio classification pipeline", _pipeline)
    return Kind(family, task, build, _sound(), *call, ("--seconds", str(SECONDS)))


CLAP_RATE = 16_000


def _save_clap(folder: Path, fused: bool) -> None:
    tokenizer = tiny._unigram()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": tiny.POSITIONS, "pad_token_id": 1}
    sound = {"spec_size": 64, "num_mel_bins": 16, "window_size": 4, "patch_embeds_hidden_size": 16}
    sound |= {"hidden_size": 32, "depths": [2, 2], "num_attention_heads": [2, 4], "num_hidden_layers": 2}
    sound |= {"enable_fusion": fused, "initializer_factor": 1.0}
    torch.manual_seed(8)
    config = transformers.ClapConfig(
        text_config={**sizes, **text, "initializer_factor": 8.0}, audio_config=sound, projection_dim=24
    )
    transformers.ClapModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        model_max_length=tiny.MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    steps = {"feature_size": 16, "sampling_rate": CLAP_RATE, "hop_length": 160, "max_length_s": 1}
    steps |= {"fft_window_size": 512, "frequency_max": 8000}
    steps["truncation"] = "fusion" if fused else "rand_trunc"
    transformers.ClapFeatureExtractor(**steps).save_pretrained(folder)


def _embed_clap(folder: Path, inputs: Columns) -> Columns:
    model = transformers.ClapModel.from_pretrained(str(folder)).eval()
    rows = []
    with torch.no_grad():
        if "text" in inputs:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
            for text in inputs["text"]:
                tokens = tokenizer(text, truncation=True, return_tensors="pt")
                rows.append(model.get_text_features(**tokens).pooler_output[0])
        else:
            extractor = transformers.AutoFeatureExtractor.from_pretrained(str(folder))
            for samples in inputs["samples"]:
                sound = torch.tensor(samples).numpy()
                found = extractor(sound, sampling_rate=CLAP_RATE, return_tensors="pt")
                found["input_features"] = found["input_features"].float()
                rows.append(model.get_audio_features(**found).pooler_output[0])
    assert (rows[0] - rows[1]).abs().max() > 0.01
    return {"embedding": [row.tolist() for row in rows]}


def _clap(fused: bool) -> list[Kind]:
    family = "clap, fused" if fused else "clap"
    build = functools.partial(_save_clap, fused=fused)
    flags = ("--task", "clap-audio", "--seconds", str(SECONDS))
    texts = {"text": list(MIXED)}
    return [
        Kind(family, "clap-text", build, texts, "get_text_features", _embed_clap),
        Kind(family, "clap-audio", build, _sound(), "get_audio_features", _embed_clap, flags),
    ]


SOUNDS = [
    *_clap(fused=False),
    *_clap(fused=True),
    *(_kind(family, "audio-classification") for family in FAMILIES),
    *(_kind(family, "transcription") for family in FAMILIES),
]
