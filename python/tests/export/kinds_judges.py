"""Decoders that re-rank by answering yes or no, and what their authors' own code gives."""

import functools
import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Transformer
from tokenizers import AddedToken, processors

from forebay.export import tiny, tiny_tasks
from forebay.export.reader import Columns
from kinds import Kind

TOKENS = 400
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def _build(folder: Path, chat: str | None = None) -> None:
    tokenizer = tiny._byte_pairs()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(MARKS)
    tokenizer.add_tokens([AddedToken(word, single_word=True) for word in ("yes", "no")])
    tokenizer.add_tokens(["<think>", "</think>"])
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 64, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.2}
    config = transformers.Qwen3Config(**sizes, vocab_size=tokenizer.get_vocab_size())
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        model_max_length=TOKENS,
        model_input_names=["input_ids", "attention_mask"],
        chat_template=chat,
    ).save_pretrained(folder)


# What sentence-transformers writes around a pair for Qwen3-Reranker: the prompt is the instruction.
CHAT = """\
{%- set asked = messages | selectattr("role", "equalto", "system") | map(attribute="content") | first -%}
{{ "<|im_start|>system\\nJudge the Document by the Query. Answer \\"yes\\" or \\"no\\".<|im_end|>\\n<|im_start|>user\\n" -}}
{{ "<Instruct>: " ~ (asked or "Given a web search query, retrieve passages") ~ "\\n" -}}
{{ "<Query>: " ~ (messages | selectattr("role", "equalto", "query") | map(attribute="content") | first) -}}
{{ "\\n<Document>: " ~ (messages | selectattr("role", "equalto", "document") | map(attribute="content") | first) -}}
{{ "<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n" }}"""


def _build_saved(
    folder: Path, chat: str | None, prompts: dict[str, str], default: str | None, false: bool
) -> None:
    """As sentence-transformers saves it."""
    with tempfile.TemporaryDirectory() as work:
        _build(Path(work), chat)
        decoder = Transformer(work, transformer_task="text-generation")
        ids = decoder.tokenizer.convert_tokens_to_ids
        score = LogitScore(ids("yes"), ids("no") if false else None)
        model = CrossEncoder(modules=[decoder, score], device="cpu", prompts=prompts)
        model.default_prompt_name = default
        model.save(str(folder))


def _predict(folder: Path, inputs: Columns) -> Columns:
    """What the library gives, one pair at a time."""
    model = CrossEncoder(str(folder), device="cpu")
    assert [type(stage).__name__ for stage in model] == ["Transformer", "LogitScore"]
    pairs = zip(inputs["query"], inputs["passage"], strict=True)
    scores = [float(model.predict([pair])[0]) for pair in pairs]
    assert len({round(score, 4) for score in scores}) > 5
    return {"score": scores}


def _saved(
    name: str, chat: str | None, prompts: dict[str, str], default: str | None, *, false: bool = True
) -> Kind:
    build = functools.partial(_build_saved, chat=chat, prompts=prompts, default=default, false=false)
    return Kind(name, "rerank", build, INPUTS, "CrossEncoder.predict", _predict)


def _score(folder: Path, inputs: Columns) -> Columns:
    """As the model's card says it: the text is cut, then put into the conversation, and padded on the left."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    system += 'Note that the answer can only be "yes" or "no".'
    begin = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    begin, end = (tokenizer.encode(text, add_special_tokens=False) for text in (begin, end))
    task = "Given a web search query, retrieve relevant passages that answer the query"
    scores = []
    for query, passage in zip(inputs["query"], inputs["passage"], strict=True):
        text = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {passage}"
        room = TOKENS - len(begin) - len(end)
        ids = tokenizer(text, truncation="longest_first", max_length=room)["input_ids"]
        batch = tokenizer.pad({"input_ids": [begin + ids + end, [5, 6, 7]]}, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits[0, -1]
        pair = torch.stack([logits[tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes")])
        scores.append(float(pair.log_softmax(dim=0)[1].exp()))
    assert len({round(score, 4) for score in scores}) > 5
    return {"score": scores}


INPUTS = tiny_tasks.MODELS["rerank-bert"].inputs
CALL = "probability of yes"
ASKED = {"web_search": "Given a web search query, retrieve relevant passages", "law": "Find the paragraph"}
JUDGES = [
    Kind("qwen3, yes or no", "rerank", _build, INPUTS, CALL, _score, ("--task", "rerank")),
    _saved("qwen3, LogitScore", CHAT, ASKED, "law"),
    _saved("qwen3, LogitScore, no prompt chosen", CHAT, ASKED, None),
    _saved("qwen3, LogitScore, one token", CHAT, {}, None, false=False),
    _saved("qwen3, LogitScore, no chat", None, {}, None),
]
