"""The tasks `audio-classification` and `transcription`: samples of one length → labels, or characters.

The input is a `FLOAT[n]` column with a window of sound at the model's sample rate. What the model's feature
extractor does with it (zero mean, unit variance) is done in the program.
"""

import json
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, Original, Values
from .classifier import Scores, best_of, label_columns
from .errors import ExportError
from .huggingface import labels_of, load, load_errors, write_labels

SECONDS = 10.0
# As the extractor has it.
EPSILON = 1e-7


class Window(torch.nn.Module):
    """`[rows, samples]` in; the model's logits out."""

    def __init__(self, model: transformers.PreTrainedModel, normalizes: bool) -> None:
        super().__init__()
        self.model = model
        self.normalizes = normalizes

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Of each row by itself."""
        if self.normalizes:
            mean = samples.mean(dim=1, keepdim=True)
            variance = samples.var(dim=1, keepdim=True, correction=0)
            samples = (samples - mean) / (variance + EPSILON).sqrt()
        return self.model(samples).logits


class Classifier(torch.nn.Module):
    """Samples in; the best class's index, its score, and all scores out."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window
        self.scores = Scores(window.model.config)

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Classifies windows."""
        return best_of(self.scores(self.window(samples)))


class Transcriber(torch.nn.Module):
    """Samples in; per frame a character and when it begins out, and which frames begin one."""

    def __init__(self, window: Window, blank: int, frame: float) -> None:
        super().__init__()
        self.window = window
        self.blank = blank
        # Seconds of a frame.
        self.frame = frame

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the best path of CTC says: of equal frames the first, without the blank."""
        best = self.window(samples).argmax(dim=-1)
        before = torch.nn.functional.pad(best[:, :-1], (1, 0), value=-1)
        begins = (best != before) & (best != self.blank)
        frames = torch.arange(best.shape[1], device=best.device)
        starts = (frames * self.frame).to(samples.dtype).expand(best.shape[0], -1)
        return best, starts, begins


def audio_classification(folder: Path, seconds: float | None) -> Candidate:
    """The candidate of a classifier of sound."""
    model = load(folder, transformers.AutoModelForAudioClassification)
    extractor, labels = _extractor(folder), labels_of(model.config)
    pipeline = transformers.AudioClassificationPipeline(
        model=model, feature_extractor=extractor, device="cpu"
    )

    def classify(samples: torch.Tensor) -> dict[str, object]:
        sound = {"raw": samples[0].numpy(), "sampling_rate": extractor.sampling_rate}
        ranked = pipeline(sound, top_k=len(labels))
        found = {"label": ranked[0]["label"], "score": ranked[0]["score"]}
        scores = {entry["label"]: entry["score"] for entry in ranked}
        if len(scores) == len(labels) > 1:
            found["scores"] = [scores[label] for label in labels]
        return found

    return _candidate(
        Classifier(Window(model, extractor.do_normalize)),
        (extractor, seconds),
        outputs=label_columns(len(labels)),
        description=f"Audio classification, {len(labels)} labels",
        write_files=lambda package: write_labels(labels, package),
        original=Original("transformers' pipeline", classify),
    )


def transcription(folder: Path, seconds: float | None) -> Candidate:
    """The candidate of a model of speech that was trained by CTC."""
    model = load(folder, transformers.AutoModelForCTC)
    extractor = _extractor(folder)
    with load_errors(folder, "transformers"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    names = tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))
    delimiter = getattr(tokenizer, "word_delimiter_token", None)
    names = [" " if name == delimiter else name or "" for name in names]
    frame = model.config.inputs_to_logits_ratio / extractor.sampling_rate

    @torch.no_grad()
    def transcribe(samples: torch.Tensor) -> dict[str, object]:
        features = extractor(
            samples[0].numpy(), sampling_rate=extractor.sampling_rate, return_tensors="pt"
        )
        best = model(features.input_values).logits[0].argmax(dim=-1)
        said = tokenizer.decode(best, output_char_offsets=True)["char_offsets"]
        starts = [character["start_offset"] * frame for character in said]
        return {"characters": [character["char"] for character in said], "starts": starts}

    def write_files(package: Path) -> None:
        text = json.dumps(names, ensure_ascii=False, indent=1)
        (package / LABELS_FILE).write_text(f"{text}\n", encoding="utf-8")

    return _candidate(
        Transcriber(Window(model, extractor.do_normalize), tokenizer.pad_token_id, frame),
        (extractor, seconds),
        outputs=(
            Column("characters", "STRING[]", labels=LABELS_FILE),
            Column("starts", "FLOAT[]"),
        ),
        description="Transcription of speech",
        write_files=write_files,
        original=Original("transformers' model and tokenizer", transcribe),
    )


def _candidate(
    module: torch.nn.Module,
    window: tuple[transformers.Wav2Vec2FeatureExtractor, float | None],
    **more: object,
) -> Candidate:
    extractor, seconds = window
    samples = round((SECONDS if seconds is None else seconds) * extractor.sampling_rate)
    least = module.window.model.config.inputs_to_logits_ratio * 2
    if samples < least:
        raise ExportError(
            f"--seconds {seconds}: expected more than {least / extractor.sampling_rate:.3f}, of which the "
            "model makes its first frames"
        )
    column = Column("samples", f"FLOAT[{samples}]")
    hidden = module.window.model.config.hidden_size
    # The first convolution makes a vector of a few samples; attention looks at all frames.
    return Candidate(
        module=module.eval(),
        inputs=(column,),
        transform=Values((column,)),
        activation_bytes=lambda rows: 4 * rows * samples * max(hidden, 512) // 2,
        **more,
    )


def _extractor(folder: Path) -> transformers.Wav2Vec2FeatureExtractor:
    with load_errors(folder, "transformers"):
        extractor = transformers.AutoFeatureExtractor.from_pretrained(
            str(folder), local_files_only=True
        )
    if not isinstance(extractor, transformers.Wav2Vec2FeatureExtractor):
        raise ExportError(
            f"{folder}: the model takes what {type(extractor).__name__} makes of sound, which a package "
            "cannot say; models that take samples (Wav2Vec2, HuBERT, WavLM) can be exported"
        )
    return extractor
