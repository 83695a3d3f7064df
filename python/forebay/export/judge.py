"""The task `rerank` by a decoder that answers yes or no: Qwen3-Reranker, as its authors call it.

The query and the passage become one text, around which the conversation of a chat is; the score is the
probability of "yes" among "yes" and "no" as the next token.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from tokenizers import processors

from .candidate import Candidate, Column, Original, encoder_activation_bytes
from .errors import ExportError
from .huggingface import load, load_tokenizer, max_tokens
from .texts import PAIRS
from .tokenizer import PROBE_PAIRS, token_transform, write_tokenizer

BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
# In front of the query: the instruction, which users may change.
PROMPT = "web_search"
INSTRUCTION = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: "
)
BETWEEN = "\n<Document>: "
TEMPLATE = f"{{query}}{BETWEEN}{{passage}}"
ANSWERS = ("no", "yes")
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


class Judge(torch.nn.Module):
    """Token ids in; what the next token says out: how much more the model expects `true` than `false`, or how
    much it expects it if there is no other."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        true: int,
        false: int | None,
        activation: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self.model = model.base_model
        self.head = model.get_output_embeddings()
        self.true, self.false = true, false
        self.activation = activation

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Of `[rows, tokens]` ids, padded at the end."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        last = (attention_mask.sum(dim=1) - 1).reshape(-1, 1, 1).expand(-1, 1, states.shape[2])
        logits = self.head(states.gather(1, last).squeeze(1))
        score = logits[:, self.true]
        if self.false is not None:
            score = score - logits[:, self.false]
        return self.activation(score.unsqueeze(1)).squeeze(1)


def judge(folder: Path, tokens: int | None) -> Candidate:
    """The candidate of such a decoder; `tokens` overrides the limit that the folder states."""
    model, tokenizer = load(folder, transformers.AutoModelForCausalLM), load_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    missing = [name for name in (*MARKS, *ANSWERS) if name not in vocabulary]
    if missing:
        raise ExportError(
            f"{folder}: its tokenizer has no token {', '.join(map(repr, missing))}, by which Qwen3-Reranker is "
            "asked and answers; other decoders re-rank as …ForSequenceClassification only"
        )
    first, last = (tokenizer.encode(text, add_special_tokens=False) for text in (BEGIN, END))
    around = len(first) + len(last)
    made_for = getattr(model.config, "max_position_embeddings", None)
    stated = min(tokenizer.model_max_length, made_for or tokenizer.model_max_length)
    longest = max_tokens(model, tokenizer, stated, tokens)
    if longest <= around:
        raise ExportError(f"--max-tokens {longest}: expected more than {around}, which the question itself takes")
    transform = token_transform(tokenizer, model, longest)

    def preprocess(text: str) -> dict[str, torch.Tensor]:
        ids = tokenizer(text, truncation=True, max_length=longest - around)["input_ids"]
        return {"input_ids": torch.tensor([[*first, *ids, *last]])}

    @torch.no_grad()
    def score(query: str, passage: str, prompt: str | None = None) -> dict[str, object]:
        features = preprocess(f"{INSTRUCTION}{query}{BETWEEN}{passage}")
        logits = model(**features).logits[:, -1, [vocabulary[answer] for answer in ANSWERS]]
        return {"score": float(logits.log_softmax(dim=1)[0, 1].exp())}

    def write_files(package: Path) -> None:
        probes = [f"{INSTRUCTION}{query}{BETWEEN}{passage}" for query, passage in (*PROBE_PAIRS, *PAIRS)]
        write_tokenizer(
            tokenizer, package / "tokenizer.json", longest, preprocess, probes, surround(tokenizer, first, last)
        )

    return Candidate(
        # As likely as yes is beside no.
        module=Judge(model, vocabulary["yes"], vocabulary["no"], torch.nn.Sigmoid()).eval(),
        inputs=(Column("query", "STRING"), Column("passage", "STRING")),
        outputs=(Column("score", "FLOAT"),),
        transform=transform.with_template(TEMPLATE),
        description="Relevance of a passage to a query",
        activation_bytes=encoder_activation_bytes(model.config, longest),
        write_files=write_files,
        original=Original("the model's logits of yes and no", score),
        prompts={PROMPT: INSTRUCTION},
        prompt=PROMPT,
    )


def surround(
    tokenizer: transformers.PreTrainedTokenizerBase, first: list[int], last: list[int]
) -> processors.PostProcessor:
    """Puts these tokens around a text, which then are not cut off with it."""
    parts = {"begin": first, "end": last}
    special = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in parts.items()
    ]
    return processors.TemplateProcessing(single="begin $A end", pair="$A $B", special_tokens=special)
