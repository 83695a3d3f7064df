"""The families of question answering that kinds.py tries."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

from forebay.export.reader import Columns
from forebay.export.texts import MIXED
from kinds import Kind

FAMILIES = """
    bert roberta albert distilbert electra mpnet deberta deberta-v2 xlm-roberta modernbert mobilebert bart
    t5
""".split()
DECODERS = ["gpt2"]
REFUSED = {"longformer": "three separator tokens"}
# What the pipeline of transformers 4 has by default: the longest answer, in tokens.
LONGEST = 15
QUESTIONS = ["Where does water wait?", "", "größer?", "What is over the dog 日本?"]


def _inputs() -> Columns:
    """Every text as a context, and as a question."""
    questions = [*(QUESTIONS[row % 4] for row in range(len(MIXED))), *MIXED]
    return {"question": questions, "context": [*MIXED, *MIXED[5:], *MIXED[:5]]}


def _answer(folder: Path, inputs: Columns) -> Columns:
    """What the pipeline of transformers 4 chooses among the model's logits, for one pair at a time."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(str(folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    outputs: Columns = {"score": [], "start": [], "end": []}
    for question, context in zip(inputs["question"], inputs["context"], strict=True):
        encoding = tokenizer(question, context, truncation=True, return_tensors="pt")
        with torch.no_grad():
            found = model(**encoding)
        of_context = np.array([text == 1 for text in encoding.sequence_ids(0)])
        sides = []
        for logits in (found.start_logits[0], found.end_logits[0]):
            known = np.where(of_context, logits.numpy(), -10_000.0).astype(np.float64)
            shares = np.exp(known - known.max())
            sides.append(np.where(of_context, shares / shares.sum(), 0.0))
        spans = np.tril(np.triu(np.outer(*sides)), LONGEST - 1)
        first, last = np.unravel_index(spans.argmax(), spans.shape)
        outputs["score"].append(float(spans[first, last]))
        if not of_context.any():
            outputs["start"].append(0)
            outputs["end"].append(0)
            continue
        words = [encoding.token_to_word(int(token)) for token in (first, last)]
        outputs["start"].append(encoding.word_to_chars(words[0], sequence_index=1)[0])
        outputs["end"].append(encoding.word_to_chars(words[1], sequence_index=1)[1])
    assert len(set(outputs["start"])) > 3
    return outputs


def kinds(save: Callable[..., None]) -> list[Kind]:
    """`save` makes a folder of a family."""

    def kind(family: str, decoder: bool, refused: str = "", types: bool = False) -> Kind:
        more = {"padding_side": "right", "types": types}
        build = functools.partial(save, family, auto=transformers.AutoModelForQuestionAnswering, decoder=decoder)
        call = "logits, and the pipeline's span"
        return Kind(
            f"{family}, token types" if types else family,
            "question-answering",
            lambda folder: build(folder, **more),
            _inputs(),
            call,
            _answer,
            refused=refused,
        )

    return [
        *(kind(family, False) for family in FAMILIES),
        *(kind(family, False, types=True) for family in ("bert", "mobilebert")),
        *(kind(family, True) for family in DECODERS),
        *(kind(family, False, why) for family, why in REFUSED.items()),
    ]
