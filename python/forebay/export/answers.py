"""The task `question-answering`: a question and a context → where in the context the answer is.

It is chosen as transformers' pipeline for it did (which transformers 5 no longer has) with
`align_to_words=False`: of all spans of up to `LONGEST` tokens of the context the one with the greatest product
of the probabilities to begin and to end there. Then it is widened to whole words. One window of the context is
read; a longer one is cut.
"""

from dataclasses import replace
from pathlib import Path

import torch
import transformers

from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .errors import ExportError
from .huggingface import load, load_tokenizer, max_tokens, takes_types
from .tokenizer import token_transform, write_pair_tokenizer

# Of the pipeline: the most tokens of an answer, and of a window.
LONGEST, WINDOW = 15, 384
# Stands for no probability, as the pipeline has it.
NEVER = -10_000.0
ARGUMENTS = ("input_ids", "attention_mask", "token_starts", "token_ends", "token_texts", "token_words")


class Answerer(torch.nn.Module):
    """Tokens of pairs in; score, start and end of the best answer out, in characters of the context."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

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
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            features["token_type_ids"] = token_type_ids
        output = self.model(**features)
        is_context = token_texts == 1
        first, last = (
            torch.where(is_context, logits, NEVER).softmax(-1) * is_context
            for logits in (output.start_logits, output.end_logits)
        )
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        length = places[None, :] - places[:, None]
        is_answer = (length >= 0) & (length < LONGEST)
        spans = (first[:, :, None] * last[:, None, :] * is_answer).flatten(1)
        score, best = spans.max(dim=1)
        found = is_context.any(dim=1)

        def word(token: torch.Tensor) -> torch.Tensor:
            """Which tokens are of the same word."""
            return (token_words == token_words.gather(1, token[:, None])) & is_context

        tokens = input_ids.shape[1]
        begins = word(torch.div(best, tokens, rounding_mode="floor"))
        ends = word(best % tokens)
        start = torch.where(begins, token_starts, token_starts.max()).min(dim=1).values
        end = torch.where(ends, token_ends, 0).max(dim=1).values
        return score, (start * found).int(), (end * found).int()


def question_answering(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of a model that finds answers; `tokens` overrides the length of its window."""
    model = load(folder, transformers.AutoModelForQuestionAnswering)
    tokenizer = load_tokenizer(folder)
    if tokenizer.padding_side == "left":
        raise ExportError(
            f"{folder}: its tokenizer pads on the left, where transformers puts the context in front of the "
            "question, which a package cannot say; set padding_side to 'right' in tokenizer_config.json if "
            "the model was trained with the question in front"
        )
    stated = min(tokenizer.model_max_length, WINDOW)
    longest = max_tokens(model, tokenizer, stated, tokens, pair=True)

    def preprocess(pair: tuple[str, str]) -> transformers.BatchEncoding:
        return tokenizer(*pair, truncation=True, max_length=longest, return_tensors="pt")

    has_types = takes_types(model, preprocess(("a", "b")))
    transform = token_transform(tokenizer, model, longest)

    @torch.no_grad()
    def answer(question: str, context: str) -> dict[str, object]:
        encoding = preprocess((question, context))
        taken = {"input_ids", "attention_mask", *["token_type_ids"] * has_types}
        output = model(**{name: value for name, value in encoding.items() if name in taken})
        return best_answer(encoding, output.start_logits[0], output.end_logits[0])

    encoder_bytes = encoder_activation_bytes(model.config, longest)
    return Candidate(
        module=Answerer(model).eval(),
        inputs=(Column("question", "STRING"), Column("context", "STRING")),
        outputs=(Column("score", "FLOAT"), Column("start", "INT"), Column("end", "INT")),
        transform=replace(transform, arguments=(*ARGUMENTS, *("token_type_ids",) * has_types)),
        description="Answers to questions, as parts of a text",
        # All spans, a few times.
        activation_bytes=lambda tokens: encoder_bytes(tokens) + 4 * 4 * tokens * longest,
        write_files=lambda package: write_pair_tokenizer(
            tokenizer, package / "tokenizer.json", longest, has_types, preprocess
        ),
        original=Original("the model's logits and the pipeline's choice of a span", answer),
    )


def best_answer(
    encoding: transformers.BatchEncoding, start: torch.Tensor, end: torch.Tensor
) -> dict[str, object]:
    """The pipeline's choice, span by span, of the logits of one row."""
    texts = encoding.sequence_ids(0)
    context = [token for token, text in enumerate(texts) if text == 1]
    if not context:
        return {"score": 0.0, "start": 0, "end": 0}
    masked = torch.tensor([0.0 if text == 1 else NEVER for text in texts])
    begins, ends = (
        torch.where(masked < 0, masked, logits).softmax(-1).tolist() for logits in (start, end)
    )
    spans = [
        (begins[first] * ends[last], -first, -last)
        for first in context
        for last in context
        if first <= last < first + LONGEST
    ]
    score, first, last = max(spans)
    words = [encoding.token_to_word(0, -token) for token in (first, last)]
    sides = [encoding.word_to_chars(0, word, sequence_index=1) for word in words]
    return {"score": score, "start": sides[0].start, "end": sides[1].end}
