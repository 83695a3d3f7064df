"""Builds tiny encoders with seeded random weights, one of each architecture the tests cover.

Each is saved as sentence-transformers saves its own models: a transformer, a tokenizer made from
a few sentences, pooling, and for some a dense layer or normalization.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HIDDEN = 32
POSITIONS = 66
MAX_TOKENS = 48

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Water behind a dam waits in the forebay before it reaches the turbines.",
    "Größe, naïve café, ÅNGSTRÖM; 日本語のテキスト and 1,234.56 € as well.",
    "Rows arrive in batches, and each batch is as long as its longest row.",
)


def _wordpiece(bert: bool) -> Tokenizer:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] if bert else ["<pad>", "<s>", "</s>", "<unk>"]
    normalizer, splitter = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    words, characters = _pieces(normalizer, splitter)
    pieces = [*special, *characters, *(f"##{character}" for character in characters), *words]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    model = models.WordPiece(vocabulary, unk_token=special[3])
    return _assemble(model, normalizer, splitter, first=special[1], last=special[2])


def _byte_pairs() -> Tokenizer:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    return _assemble(tokenizer.model, normalizers.Sequence([]), splitter, first="<s>", last="</s>")


def byte_pairs(first: str, last: str) -> Tokenizer:
    """The same with other tokens around a text, which are the last of the vocabulary."""
    tokenizer = _byte_pairs()
    tokenizer.add_special_tokens([first, last])
    return _surround(tokenizer, first, last, f"{first} $A {last} $B {last}")


def _unigram() -> Tokenizer:
    normalizer, splitter = normalizers.NFKC(), pre_tokenizers.Metaspace()
    words, characters = _pieces(normalizer, splitter)
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    scored = {**dict.fromkeys(characters, -9.0), **dict.fromkeys(words, -6.0)}
    model = models.Unigram([*special, *scored.items()], unk_id=3)
    return _assemble(model, normalizer, splitter, first="<s>", last="</s>")


def _pieces(
    normalizer: normalizers.Normalizer, splitter: pre_tokenizers.PreTokenizer
) -> tuple[list[str], list[str]]:
    """Every second word of the sentences, so that the others are split, and all their characters.

    Vocabularies are made this way because training WordPiece and Unigram is not deterministic.
    """
    text = normalizer.normalize_str(" ".join(SENTENCES))
    words = sorted({word for word, _ in splitter.pre_tokenize_str(text)})
    return words[::2], sorted(set("".join(words)))


def _assemble(
    model: models.Model,
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
    first: str,
    last: str,
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    pair = f"{first} $A {last} {last} $B {last}"
    if first == "[CLS]":
        pair = f"{first} $A {last} $B:1 {last}:1"
    return _surround(tokenizer, first, last, pair)


def _surround(tokenizer: Tokenizer, first: str, last: str, pair: str) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=pair,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    return tokenizer


def _config(
    kind: type, tokenizer: Tokenizer, pad_id: int, **more: object
) -> transformers.PretrainedConfig:
    # A wide initial range: small random weights would make all embeddings alike.
    return kind(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * HIDDEN,
        hidden_dim=2 * HIDDEN,
        max_position_embeddings=POSITIONS,
        pad_token_id=pad_id,
        initializer_range=0.2,
        **_MORE.get(kind, {}),
        **more,
    )


# Of single architectures. ModernBERT: windows shorter than most texts, and two kinds of layers.
_MORE = {
    transformers.ElectraConfig: {"embedding_size": HIDDEN // 2},
    transformers.ModernBertConfig: {
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "initializer_cutoff_factor": 3.0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    },
    transformers.GPTNeoConfig: {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    transformers.GPTJConfig: {"rotary_dim": 4},
}


# Per architecture: its configuration, its tokenizer, and the stages after the transformer.
ARCHITECTURES: dict[
    str, tuple[type, Callable[[], Tokenizer], Callable[[], list[torch.nn.Module]]]
] = {
    "bert": (
        transformers.BertConfig,
        lambda: _wordpiece(bert=True),
        lambda: [Pooling(HIDDEN, "mean"), Normalize()],
    ),
    "distilbert": (
        transformers.DistilBertConfig,
        lambda: _wordpiece(bert=True),
        lambda: [Pooling(HIDDEN, ["cls", "mean"])],
    ),
    "roberta": (
        transformers.RobertaConfig,
        _byte_pairs,
        lambda: [Pooling(HIDDEN, "cls"), Normalize()],
    ),
    "mpnet": (
        transformers.MPNetConfig,
        lambda: _wordpiece(bert=False),
        lambda: [Pooling(HIDDEN, "max")],
    ),
    "xlm-roberta": (
        transformers.XLMRobertaConfig,
        _unigram,
        lambda: [
            Pooling(HIDDEN, ["mean_sqrt_len_tokens", "max"]),
            Dense(2 * HIDDEN, 24),
            Normalize(),
        ],
    ),
    "electra": (
        transformers.ElectraConfig,
        lambda: _wordpiece(bert=True),
        lambda: [Pooling(HIDDEN, "mean"), Normalize()],
    ),
    "modernbert": (
        transformers.ModernBertConfig,
        lambda: _wordpiece(bert=True),
        lambda: [Pooling(HIDDEN, "cls")],
    ),
    # Decoders, which add an embedding for each token type that they get: also for type 0.
    "gpt2": (transformers.GPT2Config, _byte_pairs, lambda: [Pooling(HIDDEN, "weightedmean")]),
    "gpt-neo": (transformers.GPTNeoConfig, _byte_pairs, lambda: [Pooling(HIDDEN, "lasttoken")]),
    "gptj": (transformers.GPTJConfig, _byte_pairs, lambda: [Pooling(HIDDEN, "mean")]),
}
# What those of this kind expect in front of their texts.
PROMPTS = {"xlm-roberta": {"query": "query: ", "passage": "passage: "}}
# Those whose tokenizers tell the texts of a pair apart by token types.
_TYPED = ("bert", "electra")


def build_encoder(
    architecture: str, folder: Path, auto: type = transformers.AutoModel, **config: object
) -> None:
    """Saves a plain Hugging Face model (transformer, head of the `auto` class, and tokenizer)."""
    kind, make_tokenizer, _ = ARCHITECTURES[architecture]
    tokenizer = make_tokenizer()
    pad = next(token for token in ("[PAD]", "<pad>") if tokenizer.token_to_id(token) is not None)
    types = ["token_type_ids"] if architecture in _TYPED else []
    torch.manual_seed(7)
    config = _config(kind, tokenizer, tokenizer.token_to_id(pad), **config)
    auto.from_config(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", *types, "attention_mask"],
    ).save_pretrained(folder)


def build_model(architecture: str, folder: Path) -> None:
    """Saves a sentence-transformers model of this architecture in `folder`."""
    build_encoder(architecture, folder / "encoder")
    transformer = Transformer(str(folder / "encoder"))
    torch.manual_seed(8)
    stages = ARCHITECTURES[architecture][2]()
    prompts = PROMPTS.get(architecture)
    model = SentenceTransformer(modules=[transformer, *stages], device="cpu", prompts=prompts)
    model.save(str(folder / "model"))
