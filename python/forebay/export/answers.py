"""The task `question-answering`: a question and a context → where in the context the answer is.

It is chosen as transformers' pipeline for it did (which transformers 5 no longer has) with
`align_to_words=False`: a long context is cut into windows that overlap; in each the span of up to `LONGEST`
tokens of the context is found with the greatest product of the probabilities to begin and to end there; of the
windows' spans the best one is taken, where one that several windows found counts as often. Then it is widened to
whole words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import torch
import transformers

from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .errors import ExportError
from .huggingface import load, load_tokenizer, max_tokens, takes_types
from .tokenizer import token_transform, write_pair_tokenizer
from .windows import SLOWEST, Windows, of_windows

# Of the pipeline: the most tokens of an answer.
LONGEST = 15
# Of a question with its context, unless --max-tokens says otherwise; the library reads any number.
TOKENS, TOKENS_MAX = 4096, 65_536
# Stands for no probability, as the pipeline has it.
NEVER = -10_000.0
# What transformers does with a tokenizer that has this on the left.
_SIDES = {
    "padding_side": "puts the context in front of the question",
    "truncation_side": "begins with the end of the context",
}
ARGUMENTS = ("input_ids", "attention_mask", "token_starts", "token_ends", "token_texts", "token_words")


@dataclass(frozen=True)
class Reading:
    """How the model reads: its windows, the token that fills them, and the one that stands for no answer."""

    windows: Windows
    pad_id: int
    no_answer: int | None


class Answerer(torch.nn.Module):
    """Tokens of pairs in; score, start and end of the best answer out, in characters of the context."""

    def __init__(self, model: transformers.PreTrainedModel, reading: Reading) -> None:
        super().__init__()
        self.model = model
        self.reading = reading

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_starts: torch.Tensor,
        token_ends: torch.Tensor,
        token_texts: torch.Tensor,
        token_words: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """All `[rows, tokens]`; `token_texts` is 1 in the context."""
        places, is_there, is_window = self.reading.windows.places(token_texts, attention_mask)
        is_token = is_there.flatten(0, 1)
        ids = torch.where(is_token, of_windows(input_ids, places), self.reading.pad_id)
        features = {"input_ids": ids, "attention_mask": is_token.long()}
        if token_type_ids is not None:
            features["token_type_ids"] = of_windows(token_type_ids, places) * is_token
        output = self.model(**features)
        is_context = (of_windows(token_texts, places) == 1) & is_token
        sides = (output.start_logits, output.end_logits)
        score, first, last = self._spans(sides, ids, is_context, is_token)

        starts, ends, words = (of_windows(one, places) for one in (token_starts, token_ends, token_words))
        # Where the tokens of the span are, and where their words are.
        exact = starts.gather(1, first[:, None]), ends.gather(1, last[:, None])
        begin = torch.where(_word(words, first, is_context), starts, starts.max()).min(dim=1).values
        end = torch.where(_word(words, last, is_context), ends, 0).max(dim=1).values

        score, *exact, begin, end = (one.reshape(is_window.shape) for one in (score, *exact, begin, end))
        score = score * is_window
        is_same = torch.ones_like(is_window)[:, :, None]
        for side in exact:
            is_same = is_same & (side[:, :, None] == side[:, None, :])
        total, best = (is_same * score[:, None, :]).sum(dim=2).max(dim=1)
        found = (token_texts == 1).any(dim=1)
        begin, end = (one.gather(1, best[:, None]).squeeze(1) for one in (begin, end))
        return total * found, (begin * found).int(), (end * found).int()

    def _spans(
        self,
        sides: tuple[torch.Tensor, torch.Tensor],
        ids: torch.Tensor,
        is_context: torch.Tensor,
        is_token: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each window the best span's score, first and last token."""
        is_possible = is_context
        if self.reading.no_answer is not None:
            # It takes its share of the probability.
            is_possible = is_possible | (ids == self.reading.no_answer) & is_token
        first, last = (
            torch.where(is_possible, logits, NEVER).softmax(-1) * is_context for logits in sides
        )
        places = torch.arange(ids.shape[1], device=ids.device)
        length = places[None, :] - places[:, None]
        is_answer = (length >= 0) & (length < LONGEST)
        spans = (first[:, :, None] * last[:, None, :] * is_answer).flatten(1)
        score, best = spans.max(dim=1)
        tokens = ids.shape[1]
        return score, torch.div(best, tokens, rounding_mode="floor"), best % tokens


def _word(words: torch.Tensor, token: torch.Tensor, is_context: torch.Tensor) -> torch.Tensor:
    """Which tokens are of the same word as this one; itself if it is of none."""
    of_token = words.gather(1, token[:, None])
    is_itself = torch.arange(words.shape[1], device=words.device) == token[:, None]
    return ((words == of_token) & (of_token >= 0) | is_itself) & is_context


def question_answering(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a model that finds answers; `tokens` is the longest question with its context."""
    model = load(folder, transformers.AutoModelForQuestionAnswering)
    tokenizer = load_tokenizer(folder)
    for side, what in _SIDES.items():
        if getattr(tokenizer, side) == "left":
            raise ExportError(
                f"{folder}: its tokenizer has {side} 'left', with which transformers {what}, which a package "
                f"cannot say; set {side} to 'right' in tokenizer_config.json if the model was trained so"
            )
    windows = Windows.of(max_tokens(model, tokenizer, tokenizer.model_max_length, None, pair=True))
    longest = TOKENS if tokens is None else tokens
    if not windows.length <= longest <= TOKENS_MAX:
        raise ExportError(
            f"--max-tokens {longest}: expected {windows.length} to {TOKENS_MAX}; the model reads a context in "
            f"windows of {windows.length} tokens"
        )

    def preprocess(pair: tuple[str, str]) -> transformers.BatchEncoding:
        return tokenizer(*pair, truncation=True, max_length=longest, return_tensors="pt")

    has_types = takes_types(model, preprocess(("a", "b")))
    transform = token_transform(tokenizer, model, longest)
    reading = Reading(windows, transform.pad_id, tokenizer.cls_token_id)
    taken = ("input_ids", "attention_mask", *("token_type_ids",) * has_types)

    @torch.no_grad()
    def answer(question: str, context: str) -> dict[str, object]:
        spans = []
        for encoding in _library_windows(tokenizer, question, context, windows):
            features = {name: torch.tensor([getattr(encoding, _FIELDS[name])]) for name in taken}
            output = model(**features)
            spans.append(best_span(encoding, output.start_logits[0], output.end_logits[0], reading.no_answer))
        return best_answer(spans) if spans else {}

    encoder_bytes = encoder_activation_bytes(model.config, windows.length)
    return Candidate(
        module=Answerer(model, reading).eval(),
        inputs=(Column("question", "STRING"), Column("context", "STRING")),
        outputs=(Column("score", "FLOAT"), Column("start", "INT"), Column("end", "INT")),
        transform=replace(transform, arguments=(*ARGUMENTS, *("token_type_ids",) * has_types)),
        description="Answers to questions, as parts of a text",
        # Windows overlap, so that most tokens are in two or three. All spans, a few times.
        activation_bytes=lambda tokens: encoder_bytes(3 * tokens) + 3 * 4 * 4 * tokens * windows.length,
        write_files=lambda package: write_pair_tokenizer(
            tokenizer, package / "tokenizer.json", longest, has_types, preprocess
        ),
        original=Original("the model's logits and the pipeline's choice of a span", answer),
    )


_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def _library_windows(
    tokenizer: transformers.PreTrainedTokenizerBase, question: str, context: str, windows: Windows
) -> Iterator[tokenizers.Encoding]:
    """As the pipeline has the tokenizer make them; none if the question leaves no room, where it fails."""
    whole = tokenizer(question, context)
    around = len(whole["input_ids"]) - sum(text == 1 for text in whole.sequence_ids(0))
    room = windows.length - around
    if len(whole["input_ids"]) > windows.length and room - windows.shared < max(1, windows.length // SLOWEST):
        return
    made = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=windows.length,
        stride=windows.shared,
        return_overflowing_tokens=True,
    )
    yield from made.encodings


Span = tuple[float, tuple[int, int], tuple[int, int]]


def best_span(
    encoding: tokenizers.Encoding, start: torch.Tensor, end: torch.Tensor, no_answer: int | None
) -> Span:
    """The pipeline's choice, span by span, of the logits of one window: its score, and where it and its words
    are."""
    context = [token for token, text in enumerate(encoding.sequence_ids) if text == 1]
    if not context:
        return 0.0, (0, 0), (0, 0)
    texts = zip(encoding.sequence_ids, encoding.ids, strict=True)
    possible = torch.tensor([text == 1 or token == no_answer for text, token in texts])
    begins, ends = (
        torch.where(possible, logits, NEVER).softmax(-1).tolist() for logits in (start, end)
    )
    spans = [
        (begins[first] * ends[last], -first, -last)
        for first in context
        for last in context
        if first <= last < first + LONGEST
    ]
    score, *places = max(spans)
    first, last = (encoding.offsets[-place] for place in places)
    words = [encoding.token_to_word(-place) for place in places]
    wide = (
        first[0] if words[0] is None else encoding.word_to_chars(words[0], 1)[0],
        last[1] if words[1] is None else encoding.word_to_chars(words[1], 1)[1],
    )
    return score, (first[0], last[1]), wide


def best_answer(spans: list[Span]) -> dict[str, object]:
    """Of all windows: a span that several have counts as often."""
    totals: dict[tuple[int, int], float] = {}
    for score, exact, _ in spans:
        totals[exact] = totals.get(exact, 0.0) + score
    best = max(totals, key=totals.get)
    start, end = next(wide for _, exact, wide in spans if exact == best)
    return {"score": totals[best], "start": start, "end": end}
