"""The task `rerank` by a decoder as sentence-transformers saves it: a `Transformer` and a `LogitScore`.

The pair is put into a conversation by the tokenizer's chat template, and the score is what the decoder expects
as the next token. What the template writes around the texts becomes what a package knows: tokens in front and
behind, which are never cut off; a template of two texts; and prompts, which the chat template writes somewhere
in front of the query.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder
from transformers import PreTrainedTokenizerBase

from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .errors import ExportError
from .judge import Judge, surround
from .texts import PAIRS
from .tokenizer import PROBE_PAIRS, token_transform, write_pair_tokenizer, write_tokenizer

# Stand for the texts while the chat template is looked at.
_QUERY, _PASSAGE = "first7f3a", "second7f3a"
# The prompt of calls that name none, where the model has others and none of them is its default.
_DEFAULT = "default"


@dataclass(frozen=True)
class _Conversation:
    """What the chat template writes around a pair."""

    # Tokens that a text does not merge with.
    begin: list[int]
    end: list[int]
    # With the names of the inputs in braces.
    template: str
    # What comes in front of the query, by the name of the prompt.
    prompts: dict[str, str]
    prompt: str | None


def by_logits(folder: Path, model: CrossEncoder) -> Candidate:
    """The candidate of a cross-encoder of these two modules."""
    decoder, score = model[0].auto_model, model[1]
    transform = token_transform(model.tokenizer, decoder, model.max_seq_length)
    talk = _conversation(folder, model)
    if talk is not None:
        around = len(talk.begin) + len(talk.end)
        if transform.max_tokens <= around:
            raise ExportError(
                f"{folder}: a longest input of {transform.max_tokens} tokens is too short: its chat template "
                f"alone has {around}; pass a greater --max-tokens"
            )
        transform = transform.with_template(talk.template)

    def write_files(package: Path) -> None:
        _write(model, talk, package / "tokenizer.json", transform.max_tokens)

    def predict(query: str, passage: str, prompt: str | None = None) -> dict[str, object]:
        name = None if prompt == _DEFAULT and _DEFAULT not in model.prompts else prompt
        return {"score": float(model.predict([(query, passage)], prompt_name=name)[0])}

    prompts = {} if talk is None else {"prompts": talk.prompts, "prompt": talk.prompt}
    return Candidate(
        # The model itself keeps its activation out of its modules.
        module=Judge(decoder, score.true_token_id, score.false_token_id, model.activation_fn).eval(),
        inputs=(Column("query", "STRING"), Column("passage", "STRING")),
        outputs=(Column("score", "FLOAT"),),
        transform=transform,
        description="Relevance of a passage to a query",
        activation_bytes=encoder_activation_bytes(decoder.config, transform.max_tokens),
        write_files=write_files,
        original=Original("CrossEncoder.predict", predict),
        **prompts,
    )


def _conversation(folder: Path, model: CrossEncoder) -> _Conversation | None:
    """None for models that take a pair as it is."""
    if "message" not in model[0].modality_config:
        return None
    # Those of most models stand for nothing.
    named = {name: text for name, text in model.prompts.items() if text}
    parts = {name: _render(folder, model, text) for name, text in (("", None), *named.items())}
    before = {name: part[0] for name, part in parts.items()}
    if len({part[1:] for part in parts.values()}) > 1:
        raise ExportError(
            f"{folder}: its chat template writes a prompt behind the query, where a package cannot have it"
        )
    _, between, after = parts[""]
    marks = sorted(_marks(model.tokenizer), key=len, reverse=True)
    common = os.path.commonprefix(list(before.values()))
    cut = max((common.rfind(mark) + len(mark) for mark in marks if mark in common), default=0)
    lead = os.path.commonprefix([text[cut:] for text in before.values()])
    tail = min((after.find(mark) for mark in marks if mark in after), default=len(after))
    prompts = {name or _DEFAULT: text[cut + len(lead) :] for name, text in before.items()}
    chosen = model.default_prompt_name if model.default_prompt_name in named else _DEFAULT
    if not named or chosen != _DEFAULT and _DEFAULT not in named:
        del prompts[_DEFAULT]

    def tokens(text: str) -> list[int]:
        return model.tokenizer.encode(text, add_special_tokens=False)

    return _Conversation(
        begin=tokens(common[:cut]),
        end=tokens(after[tail:]),
        template=f"{lead}{{query}}{between}{{passage}}{after[:tail]}",
        prompts=prompts,
        prompt=chosen if prompts else None,
    )


def _render(folder: Path, model: CrossEncoder, prompt: str | None) -> tuple[str, str, str]:
    """What is in front of the query, between it and the passage, and behind."""
    talk = model[0].input_formatter
    messages = [talk.pair_to_messages((_QUERY, _PASSAGE))]
    if prompt is not None:
        messages = talk.prepend_prompt_to_messages(messages, prompt)
    options = model[0].processing_kwargs.get("chat_template", {}) if model[0].processing_kwargs else {}
    text = model.tokenizer.apply_chat_template(messages[0], tokenize=False, **options)
    before, found, rest = text.partition(_QUERY)
    between, also, after = rest.partition(_PASSAGE)
    if not (found and also) or _QUERY in rest or _PASSAGE in after:
        raise ExportError(
            f"{folder}: its chat template does not write the query once and then the passage once, as a package "
            "does"
        )
    return before, between, after


def _marks(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Tokens that are cut out of a text before it is divided into others."""
    return [token.content for token in tokenizer.added_tokens_decoder.values()]


def _write(model: CrossEncoder, talk: _Conversation | None, path: Path, longest: int) -> None:
    """The tokenizer, with what it must put around a text."""
    if talk is None:
        write_pair_tokenizer(
            model.tokenizer, path, longest, False, lambda pair: model.preprocess([list(pair)])
        )
        return
    before, rest = talk.template.split("{query}")
    between, after = rest.split("{passage}")
    prompt = "" if talk.prompt is None else talk.prompts[talk.prompt]
    pairs = {
        f"{before}{prompt}{query}{between}{passage}{after}": [query, passage]
        for query, passage in (*PROBE_PAIRS, *PAIRS)
    }
    stated = None if model.default_prompt_name is None else model.prompts[model.default_prompt_name]

    def preprocess(text: str) -> Mapping[str, torch.Tensor]:
        return model.preprocess([pairs[text]], prompt=stated)

    around = surround(model.tokenizer, talk.begin, talk.end)
    write_tokenizer(model.tokenizer, path, longest, preprocess, list(pairs), around)
