"""Decides what a source is for, and makes the candidate of it.

A folder says it itself: sentence-transformers in its own files, transformers by the class that is
first in config.json's `architectures`. `--task` decides where a folder leaves a choice.
"""

import argparse
import json
from pathlib import Path

from .candidate import Candidate
from .errors import ExportError
from .source import Source

# Task → what it takes, as messages name it. The keys are the values of --task.
TASKS = {
    "embedding": "encoders of sentence-transformers, and plain ones (…Model, …ForMaskedLM)",
    "classification": "…ForSequenceClassification",
    "rerank": "cross-encoders, …ForSequenceClassification over two texts",
    "token-classification": "…ForTokenClassification",
    "image-classification": "…ForImageClassification, torchvision/NAME",
    "clip-image": "CLIPModel, its half for images",
    "clip-text": "CLIPModel, its half for texts",
}
_IMAGES = ("image-classification", "clip-image")
# The tasks that an option counts for; for the others it is refused.
_OPTIONS = {
    "max_tokens": tuple(task for task in TASKS if task not in _IMAGES),
    "images": _IMAGES,
    "normalize": ("image-classification",),
}
# Those that count for models of torchvision only.
_TORCHVISION_OPTIONS = ("weights", "labels")
# In this order: the ends of class names of transformers, and `None` for those of no task.
_BY_HEAD = {
    "LMHeadModel": None,
    "DoubleHeadsModel": None,
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForMaskedLM": "embedding",
    "ForPreTraining": "embedding",
    "CLIPModel": "clip-text",
    "Model": "embedding",
}
_FAMILIES = """
    BERT, DistilBERT, RoBERTa, XLM-RoBERTa, MPNet, MiniLM, ELECTRA, ModernBERT; ResNet, ViT; CLIP
""".strip()


def find_task(source: Source, requested: str | None) -> str:
    """The task that the source is made for, or the requested one if the source can do it."""
    stated = _stated_task(source)
    if requested is None or requested == stated:
        return stated
    if {requested, stated} == {"classification", "rerank"}:
        return requested  # One head: how many texts it takes is up to its training.
    if {requested, stated} == {"clip-image", "clip-text"}:
        return requested
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
        case "classification":
            from .classifier import classification

            return classification(folder, tokens)
        case "rerank":
            from .reranker import rerank

            return rerank(folder, tokens)
        case "token-classification":
            from .tagger import token_classification

            return token_classification(folder, tokens)
        case "clip-image":
            from .clip import clip_image

            return clip_image(folder, options.images)
        case "clip-text":
            from .clip import clip_text

            return clip_text(folder, tokens)
        case _:
            from .vision import image_classification

            return image_classification(source, options)


def _stated_task(source: Source) -> str:
    if source.torchvision is not None:
        return "image-classification"
    config = _read(source.folder / "config.json")
    if "modules.json" in {path.name for path in source.folder.iterdir()}:
        about = _read(source.folder / "config_sentence_transformers.json")
        return "rerank" if about.get("model_type") == "CrossEncoder" else "embedding"
    architectures = config.get("architectures") or []
    if not architectures:
        return "embedding"
    tasks = (task for head, task in _BY_HEAD.items() if architectures[0].endswith(head))
    task = next(tasks, None)
    if task is None:
        supported = "; ".join(f"{task}: {what}" for task, what in TASKS.items())
        raise ExportError(
            f"{source.name}: the architecture {architectures[0]} is not supported"
            f"{_why(architectures[0])}; these are: {supported}. Tested families: {_FAMILIES}"
        )
    return "rerank" if task == "classification" and _scores_pairs(config) else task


def _why(architecture: str) -> str:
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return ""
    return (
        ": it continues texts, which no task does; to embed texts with it, save it by "
        "sentence-transformers, with a pooling"
    )


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
