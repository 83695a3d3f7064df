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
QUESTIONS = ["Where?", "", "größer?", "fox 日本"]
LONG = " ".join(text for text in MIXED if len(text) < 200)


def _inputs() -> Columns:
    """Every text as a context, and all of them as one, from several places on."""
    contexts = [*MIXED, *(LONG[start:] for start in range(0, 200, 23))]
    return {"question": [QUESTIONS[row % 4] for row in range(len(contexts))], "context": contexts}


def _answer(folder: Path, inputs: Columns) -> Columns:
    """What the pipeline of transformers 4 chooses with `align_to_words=False`, one pair at a time; then where
    the words are."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(str(folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    outputs: Columns = {"score": [], "start": [], "end": []}
    windows = []
    for question, context in zip(inputs["question"], inputs["context"], strict=True):
        longest = min(tokenizer.model_max_length, 384)
        encoded = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=longest,
            stride=min(longest // 2, 128),
            padding="longest",
            return_tensors="pt",
            return_overflowing_tokens=True,
        )
        encoded.pop("overflow_to_sample_mapping", None)
        with torch.no_grad():
            found = model(**encoded)
        answers: list[dict] = []
        for window, encoding in enumerate(encoded.encodings):
            span = _span(tokenizer, encoding, found.start_logits[window], found.end_logits[window])
            if span is None:
                continue
            score, (first, last) = span
            exact = (encoding.offsets[first][0], encoding.offsets[last][1])
            known = next((answer for answer in answers if answer["exact"] == exact), None)
            if known is not None:
                known["score"] += score
                continue
            words = [encoding.token_to_word(int(token)) for token in (first, last)]
            start, end = (encoding.word_to_chars(word, 1) for word in words)
            answers.append({"score": score, "exact": exact, "start": start[0], "end": end[1]})
        windows.append(len(encoded.encodings))
        best = max(answers, key=lambda answer: answer["score"], default={"score": 0.0, "start": 0, "end": 0})
        for name, values in outputs.items():
            values.append(best[name])
    assert len(set(outputs["start"])) > 3 and max(windows) > 5 and max(outputs["start"]) > 60
    return outputs


def _span(
    tokenizer: transformers.PreTrainedTokenizerBase, encoding: object, *logits: torch.Tensor
) -> tuple[float, tuple[int, int]] | None:
    """The best of one window, as the pipeline decodes it."""
    of_context = np.array([text == 1 for text in encoding.sequence_ids])
    # The first token may stand for no answer.
    kept = of_context | (np.array(encoding.ids) == tokenizer.cls_token_id)
    if not of_context.any():
        return None
    sides = []
    for one in logits:
        known = np.where(kept, one.numpy(), -10_000.0).astype(np.float64)
        shares = np.exp(known - known.max())
        sides.append(shares / shares.sum())
        sides[-1][0] = 0.0
    spans = np.tril(np.triu(np.outer(*sides)), LONGEST - 1) * np.outer(of_context, of_context)
    first, last = np.unravel_index(spans.argmax(), spans.shape)
    return float(spans[first, last]), (first, last)


def kinds(save: Callable[..., None]) -> list[Kind]:
    """`save` makes a folder of a family."""

    def kind(family: str, decoder: bool, refused: str = "", types: bool = False) -> Kind:
        more = {"padding_side": "right", "types": types, "cls": None if decoder else "[CLS]"}
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
