"""The tasks `clap-text` and `clap-audio`: the two halves of a CLAP model, one package each.

Both give vectors of length 1 in one space, so `inner_product(audio, text)` is how well they fit. What the
model's feature extractor does with samples (they are repeated up to the model's window, and become a
spectrogram) is done in the program.
"""

from pathlib import Path

import torch
import transformers

from .candidate import Candidate, Column, Original, Values, encoder_activation_bytes
from .errors import ExportError
from .huggingface import load, load_errors, load_tokenizer, max_tokens
from .tokenizer import token_transform, write_tokenizer

# As the extractor has it: the least power, in front of the logarithm.
FLOOR = 1e-10


class Spectrogram(torch.nn.Module):
    """`[rows, samples]` in; what the extractor makes of them out, `[rows, 1, frames, mels]`."""

    def __init__(self, extractor: transformers.ClapFeatureExtractor, samples: int) -> None:
        super().__init__()
        self.window_size, self.hop = extractor.fft_window_size, extractor.hop_length
        missing = extractor.nb_max_samples - samples
        repeats = extractor.nb_max_samples // samples
        if extractor.padding not in ("repeatpad", "repeat", "pad"):
            raise ExportError(f"the feature extractor pads by {extractor.padding!r}, which is not known")
        self.repeats = {"repeatpad": repeats, "repeat": repeats + 1, "pad": 1}[extractor.padding]
        if not missing:
            self.repeats = 1
        self.samples = extractor.nb_max_samples
        is_fused = extractor.truncation == "fusion"
        filters = extractor.mel_filters if is_fused else extractor.mel_filters_slaney
        self.register_buffer("filters", torch.from_numpy(filters))
        window = torch.hann_window(self.window_size, dtype=torch.float64)
        self.register_buffer("window", window)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """In 64 bits, as the extractor: logarithms of what is almost nothing tell rounding apart."""
        repeated = samples.double().repeat(1, self.repeats)[:, : self.samples]
        missing = self.samples - repeated.shape[1]
        padded = torch.nn.functional.pad(repeated, (0, missing))
        spectrum = torch.stft(
            padded,
            self.window_size,
            hop_length=self.hop,
            window=self.window.double(),
            center=True,
            pad_mode="reflect",
            return_complex=True,
        )
        power = torch.view_as_real(spectrum).square().sum(-1)
        mels = (power.transpose(1, 2) @ self.filters.double()).clamp(min=FLOOR)
        return (10.0 * mels.log10()).to(samples.dtype)[:, None]


class AudioEncoder(torch.nn.Module):
    """Samples in; one vector per row out."""

    def __init__(self, model: transformers.ClapModel, spectrogram: Spectrogram) -> None:
        super().__init__()
        self.spectrogram = spectrogram
        self.model = model
        self.is_fused = model.config.audio_config.enable_fusion

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Embeds windows. Of one sound the extractor says that it is longer, if the model minds."""
        mels, longer = self.spectrogram(samples), None
        if self.is_fused:
            mels, longer = mels.repeat(1, 4, 1, 1), torch.ones_like(samples[:, :1]) > 0
        return self.model.get_audio_features(input_features=mels, is_longer=longer).pooler_output


class TextEncoder(torch.nn.Module):
    """`[rows, tokens]` ids in; one vector per row out."""

    def __init__(self, model: transformers.ClapModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds texts."""
        features = self.model.get_text_features(input_ids=input_ids, attention_mask=attention_mask)
        return features.pooler_output


def clap_audio(folder: Path, seconds: float | None) -> Candidate:
    """The candidate of the half for sound; its window is `seconds` long, or as long as the model takes."""
    model = load(folder, transformers.ClapModel)
    with load_errors(folder, "transformers"):
        extractor = transformers.ClapFeatureExtractor.from_pretrained(str(folder), local_files_only=True)
    longest, rate = extractor.max_length_s, extractor.sampling_rate
    samples = round((longest if seconds is None else seconds) * rate)
    if not extractor.fft_window_size <= samples <= extractor.nb_max_samples:
        raise ExportError(
            f"--seconds {seconds}: expected {extractor.fft_window_size / rate:.3f} to {longest}, the window "
            "that the model takes"
        )
    module = AudioEncoder(model, Spectrogram(extractor, samples)).eval()
    column = Column("samples", f"FLOAT[{samples}]")
    config = model.config.audio_config
    patches = (config.spec_size // config.patch_stride[0]) ** 2
    hidden, around = config.patch_embeds_hidden_size, config.window_size**2

    @torch.no_grad()
    def embed(sound: torch.Tensor) -> dict[str, object]:
        features = extractor(sound[0].numpy(), sampling_rate=rate, return_tensors="pt")
        features["input_features"] = features["input_features"].float()
        return {"embedding": model.get_audio_features(**features).pooler_output[0].tolist()}

    return Candidate(
        module=module,
        inputs=(column,),
        outputs=(_embedding(model),),
        transform=Values((column,)),
        description=f"CLAP audio embeddings, {model.config.projection_dim} dimensions",
        # The spectrum in 64 bits, then the first stage of the transformer, which is the widest.
        activation_bytes=lambda rows: rows
        * (24 * extractor.nb_max_samples + 4 * patches * (24 * hidden + 2 * config.num_attention_heads[0] * around)),
        original=Original("ClapModel.get_audio_features", embed),
    )


def clap_text(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of the half for texts; `tokens` overrides the limit that the folder states."""
    model, tokenizer = load(folder, transformers.ClapModel), load_tokenizer(folder)
    longest = max_tokens(model.text_model, tokenizer, tokenizer.model_max_length, tokens)
    transform = token_transform(tokenizer, model.text_model, longest)

    def preprocess(text: str) -> dict[str, torch.Tensor]:
        return tokenizer([text], truncation=True, max_length=longest, return_tensors="pt")

    @torch.no_grad()
    def embed(text: str) -> dict[str, object]:
        features = preprocess(text)
        taken = {name: features[name] for name in ("input_ids", "attention_mask")}
        return {"embedding": model.get_text_features(**taken).pooler_output[0].tolist()}

    return Candidate(
        module=TextEncoder(model).eval(),
        inputs=(Column("text", "STRING"),),
        outputs=(_embedding(model),),
        transform=transform,
        description=f"CLAP text embeddings, {model.config.projection_dim} dimensions",
        activation_bytes=encoder_activation_bytes(model.config.text_config, longest),
        write_files=lambda package: write_tokenizer(
            tokenizer, package / "tokenizer.json", longest, preprocess
        ),
        original=Original("ClapModel.get_text_features", embed),
    )


def _embedding(model: transformers.ClapModel) -> Column:
    return Column("embedding", f"FLOAT[{model.config.projection_dim}]")
