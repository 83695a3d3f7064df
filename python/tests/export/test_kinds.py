"""Families of models: a few in every run, all with FOREBAY_KINDS=all; the table in the docs is of them."""

import os

import pytest

from kinds import BEGIN, DOCS, END, Kind, problem_of, rows_of, try_kind, versions
from kinds_list import KINDS

# What was silently wrong or refused before, and needs code of its own.
QUICK = (
    "embedding: qwen3",
    "embedding: embeddinggemma",
    "embedding: longformer",
    "embedding: deberta",
    "embedding: xmod",
    "embedding: flaubert",
    "embedding: static",
    "sparse-embedding: bert",
    "classification: bart",
    "classification: t5",
    "classification: longformer",
    "classification: bloom",
    "token-classification: longformer",
    "rerank: bart, 3 labels",
    "rerank: qwen3, yes or no",
    "question-answering: bert, token types",
    "question-answering: roberta",
    "question-answering: longformer",
    "clap-text: clap",
    "clap-audio: clap, fused",
    "object-detection: rt_detr",
    "image-classification: swin",
    "image-classification: vit, several labels",
    "image-classification: mobilevit",
    "image-embedding: convnext",
    "image-embedding: clip_vision_model",
    "clip-text: siglip",
    "clip-image: siglip",
    "object-detection: detr",
    "audio-classification: wav2vec2",
    "transcription: wavlm",
    "program: TorchScript",
    "embedding: fnet",
    "embedding: yoso",
    "embedding: canine",
)
IS_WHOLE = os.environ.get("FOREBAY_KINDS") == "all"
CHOSEN = [kind for kind in KINDS if IS_WHOLE or kind.name in QUICK or kind.task == "none"]


@pytest.mark.parametrize("kind", CHOSEN, ids=[kind.name for kind in CHOSEN])
def test_a_package_agrees_with_its_library_or_is_refused_in_words(kind: Kind) -> None:
    outcome = try_kind(kind)
    assert problem_of(kind, outcome) == ""


def test_kinds_have_names_of_their_own() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) > 101
    assert set(QUICK) <= set(names)


def test_the_table_of_the_docs_is_of_these_kinds_and_libraries() -> None:
    table = DOCS.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    rows = rows_of(table)
    stale = "run `make models`, which takes minutes"
    assert list(rows) == [(kind.family, kind.task) for kind in KINDS], stale
    refused = [row.split("|")[3].strip().startswith("refused: ") for row in rows.values()]
    assert refused == [bool(kind.refused) for kind in KINDS], stale
    assert versions() in table, stale
