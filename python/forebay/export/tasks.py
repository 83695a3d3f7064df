"""Decides what a source is for, and makes the candidate of it.

A folder says it itself: sentence-transformers in its own files, transformers by the class that is
first in config.json's `architectures`. `--task` decides where a folder leaves a choice.
"""

import argparse
import json
import re
from pathlib import Path

from .candidate import Candidate
from .errors import ExportError
from .source import Source

# Task → what it takes, as messages name it. The keys are the values of --task.
TASKS = {
    "embedding": "encoders of sentence-transformers, and plain ones (…Model, …ForMaskedLM)",
    "sparse-embedding": "sparse encoders of sentence-transformers (SPLADE)",
    "classification": "…ForSequenceClassification",
    "rerank": "cross-encoders, …ForSequenceClassification over two texts, Qwen3-Reranker",
    "token-classification": "…ForTokenClassification",
    "question-answering": "…ForQuestionAnswering",
    "image-classification": "…ForImageClassification, torchvision/NAME",
    "image-embedding": "encoders of images (ViTModel, Dinov2Model, CLIPVisionModelWithProjection)",
    "audio-classification": "Wav2Vec2ForSequenceClassification, and of HuBERT, WavLM and others",
    "transcription": "…ForCTC of the same",
    "program": "a file of your own: TorchScript, or a module of PyTorch",
    "object-detection": "…ForObjectDetection of DETR, Table Transformer, YOLOS",
    "clip-image": "CLIPModel and SiglipModel, their half for images",
    "clip-text": "CLIPModel and SiglipModel, their half for texts",
    "clap-audio": "ClapModel, its half for sound",
    "clap-text": "ClapModel, its half for texts",
}
_IMAGES = ("image-classification", "image-embedding", "object-detection", "clip-image")
_SOUNDS = ("audio-classification", "transcription", "clap-audio")
# The tasks that an option counts for; for the others it is refused.
_OPTIONS = {
    "max_tokens": tuple(task for task in TASKS if task not in (*_IMAGES, *_SOUNDS, "program")),
    "seconds": _SOUNDS,
    "input": ("program",),
    "images": _IMAGES,
    "normalize": ("image-classification",),
}
# Those that count for models of torchvision only; labels for users' own programs, too.
_TORCHVISION_OPTIONS = ("weights", "labels")
# In this order: the ends of class names of transformers.
_BY_HEAD = {
    "ForSequenceClassification": "classification",
    "ForCTC": "transcription",
    "ForObjectDetection": "object-detection",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForImageClassification": "image-classification",
    "ForMaskedLM": "embedding",
    "ForPreTraining": "embedding",
    "CLIPVisionModelWithProjection": "image-embedding",
    "VisionModel": "image-embedding",
    "CLIPModel": "clip-text",
    "ClapModel": "clap-text",
    "SiglipModel": "clip-text",
    "Siglip2Model": "clip-text",
    "Model": "embedding",
}
# What sentence-transformers calls a model that is saved with modules.
_BY_LIBRARY = {"CrossEncoder": "rerank", "SparseEncoder": "sparse-embedding"}
# What models are for that no task is for, by their names; the first that is found counts.
_NO_TASK = {
    r"LayoutLMv[23]|LayoutXLM|Udop|Donut|MarkupLM": "it takes images beside texts, as scans of pages are",
    r"^AST|Audio(?!ForSequenceClassification$|ForCTC$)|Clap(?!Model$)|XVector|"
    r"Speech(?!(Sat)?For(SequenceClassification|CTC)$)|"
    r"ForAudioFrameClassification$|Whisper(?!ForConditionalGeneration$)|^Wav2Vec2(Bert|Model|ForPreTraining)|"
    r"^(Hubert|WavLM)Model$": "it takes audio in a way that no task does; classifiers and …ForCTC of "
    "Wav2Vec2, HuBERT and WavLM can be exported",
    r"Video|Timesformer|Vivit": "it takes videos",
    r"(ForCausalLM|LMHeadModel|DoubleHeadsModel)$": "it continues texts, which no task does; to embed texts "
    "with it, save it by sentence-transformers, with a pooling; for Qwen3-Reranker, which answers yes or no, "
    "say --task rerank",
    r"(ForConditionalGeneration|EncoderDecoderModel|ForImageTextToText|ForVision2Seq)$": "it writes texts, "
    "which no task does; an encoder of texts or images can be exported",
    r"^Tapas|^Vilt|(Visual|Table|Document)QuestionAnswering": "it answers questions about tables or images; "
    "…ForQuestionAnswering over texts can be exported",
    r"ForMultipleChoice$": "it chooses among several texts",
    r"ForNextSentencePrediction$": "it tells whether a text follows another; models that score pairs of "
    "texts end in ForSequenceClassification",
    r"ForZeroShotObjectDetection$": "it finds objects in images by their names",
    r"(Segmentation|DepthEstimation|ForSuperResolution|ForMaskedImageModeling|ForKeypointDetection)$": "it "
    "gives images, which no task does",
    r"^Sam": "it takes points and boxes beside images",
    r"ForPrediction$": "it goes on with series of numbers",
}
# Classes of models of sound, whose classifiers are named as those of texts.
_SOUND = r"Wav2Vec2|Hubert|WavLM|UniSpeech|SEW|Data2VecAudio"
_FAMILIES = (
    "BERT, RoBERTa, MPNet, DeBERTa, ModernBERT, T5, BART, Qwen3, Gemma; ViT, DINOv2, Swin, ResNet; CLIP, "
    "SigLIP; Wav2Vec2 (docs/models.md has all)"
)


def find_task(source: Source, requested: str | None) -> str:
    """The task that the source is made for, or the requested one if the source can do it."""
    if requested == "rerank" and _is_decoder(source):
        return requested
    stated = _stated_task(source)
    if requested is None or requested == stated:
        return stated
    if {requested, stated} == {"classification", "rerank"}:
        return requested  # One head: how many texts it takes is up to its training.
    if {requested, stated} in ({"clip-image", "clip-text"}, {"clap-audio", "clap-text"}):
        return requested  # Two halves of one model.
    raise ExportError(
        f"{source.name}: --task {requested} takes {TASKS[requested]}; this is a model for {stated}"
    )


def check_options(source: Source, task: str, options: argparse.Namespace) -> None:
    """Refuses options that would not count for this model."""
    given = {name for name, value in vars(options).items() if value is not None and value is not False}
    for name, tasks in _OPTIONS.items():
        if name in given and task not in tasks:
            raise ExportError(
                f"{source.name}: --{name.replace('_', '-')} is for {', '.join(tasks)}; this is a model "
                f"for {task}; leave it out"
            )
    for name in _TORCHVISION_OPTIONS:
        if name == "labels" and source.program is not None:
            continue
        if name in given and source.torchvision is None:
            raise ExportError(
                f"{source.name}: --{name} is for torchvision/NAME; this folder has its own; leave it out"
            )


def make_candidate(source: Source, task: str, options: argparse.Namespace) -> Candidate:
    """Loads the model; libraries are imported only for the task at hand."""
    folder, tokens = source.folder, options.max_tokens
    match task:
        case "embedding":
            from .encoder import embedding

            return embedding(folder, tokens)
        case "sparse-embedding":
            from .sparse import sparse_embedding

            return sparse_embedding(folder, tokens)
        case "classification":
            from .classifier import classification

            return classification(folder, tokens)
        case "rerank" if _is_decoder(source):
            from .judge import judge

            return judge(folder, tokens)
        case "rerank":
            from .reranker import rerank

            return rerank(folder, tokens)
        case "token-classification":
            from .tagger import token_classification

            return token_classification(folder, tokens)
        case "question-answering":
            from .answers import question_answering

            return question_answering(folder, tokens)
        case "audio-classification":
            from .audio import audio_classification

            return audio_classification(folder, options.seconds)
        case "transcription":
            from .audio import transcription

            return transcription(folder, options.seconds)
        case "program":
            from .user_program import program

            return program(source.program, options.input, options.results, options.labels)
        case "object-detection":
            from .detection import object_detection

            return object_detection(folder, options.images)
        case "image-embedding":
            from .image_embedding import image_embedding

            return image_embedding(folder, options.images)
        case "clip-image":
            from .clip import clip_image

            return clip_image(folder, options.images)
        case "clap-audio":
            from .clap import clap_audio

            return clap_audio(folder, options.seconds)
        case "clap-text":
            from .clap import clap_text

            return clap_text(folder, tokens)
        case "clip-text":
            from .clip import clip_text

            return clip_text(folder, tokens)
        case _:
            from .vision import image_classification

            return image_classification(source, options)


def _stated_task(source: Source) -> str:
    if source.torchvision is not None:
        return "image-classification"
    if source.program is not None:
        return "program"
    config = _read(source.folder / "config.json")
    if "modules.json" in {path.name for path in source.folder.iterdir()}:
        about = _read(source.folder / "config_sentence_transformers.json")
        return _BY_LIBRARY.get(about.get("model_type"), "embedding")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ExportError(
            f"{source.folder / 'config.json'}: architectures is {architectures!r}, expected a list of names, "
            'such as ["BertModel"]'
        )
    if not architectures:
        return "embedding"
    tasks = (task for head, task in _BY_HEAD.items() if architectures[0].endswith(head))
    task = next(tasks, None)
    if task is None or _why(architectures[0]):
        supported = "; ".join(f"{task}: {what}" for task, what in TASKS.items())
        raise ExportError(
            f"{source.name}: the architecture {architectures[0]} is not supported"
            f"{_why(architectures[0])}; these are: {supported}. Tested families: {_FAMILIES}"
        )
    if task == "classification" and re.match(_SOUND, architectures[0]):
        return "audio-classification"
    if task == "embedding" and _is_of_images(config):
        return "image-embedding"
    return "rerank" if task == "classification" and _scores_pairs(config) else task


def _is_decoder(source: Source) -> bool:
    """Whether it continues texts, as a folder of transformers."""
    if source.torchvision is not None or source.program is not None or (source.folder / "modules.json").exists():
        return False
    architectures = _read(source.folder / "config.json").get("architectures") or []
    return isinstance(architectures, list) and str(architectures[:1]).endswith("ForCausalLM']")


def _is_of_images(config: dict) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_IMAGE_MAPPING_NAMES


def _why(architecture: str) -> str:
    what = next((what for sign, what in _NO_TASK.items() if re.search(sign, architecture)), None)
    return "" if what is None else f": {what}"


def _scores_pairs(config: dict) -> bool:
    """Whether a sequence classifier is a cross-encoder: it says so, or has one label only."""
    if {"sentence_transformers", "sbert_ce_default_activation_function"} & config.keys():
        return True
    # Where config.json names no labels there are two.
    labels = config.get("id2label") or {"0": "", "1": ""}
    return len(labels) == 1 and config.get("problem_type") is None


def _read(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ExportError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ExportError(f"{path}: found {type(found).__name__}, expected an object of JSON")
    return found
