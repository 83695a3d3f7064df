"""The families that kinds.py tries: text, images, and what is refused."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling

from forebay.export import tiny, tiny_tasks
from forebay.export.reader import Columns
from forebay.export.texts import MIXED
from kinds import Kind
from kinds_answers import kinds as answers
from kinds_audio import SOUNDS
from kinds_images import IMAGES
from kinds_judges import JUDGES

LABELS = {0: "negative", 1: "neutral", 2: "größer als"}
HIDDEN = 32
# Every name that a configuration has for the same few sizes. Wide initial weights tell texts apart.
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "dim"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("ffn_dim", "hidden_dim", "n_inner", "d_inner"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), tiny.POSITIONS),
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "embedding_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
POSITIONS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
SEQ2SEQ = {"decoder_start_token_id": 0, "initializer_factor": 0.5}
NARROW = {"initializer_range": 0.05}
# What a family needs besides.
MORE = {
    "deberta": POSITIONS,
    "deberta-v2": {**POSITIONS, "position_buckets": 16},
    "longformer": {"attention_window": [8, 8]},
    "big_bird": {"attention_type": "original_full"},
    "funnel": {"block_sizes": [1, 1], "d_head": 8, "num_decoder_layers": 1, "n_head": 4},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32, "embedding_size": 32, **NARROW},
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "en_XX"},
    "squeezebert": {"embedding_size": HIDDEN},
    "t5": SEQ2SEQ,
    "mt5": SEQ2SEQ,
    "umt5": SEQ2SEQ,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "gptj": {"rotary_dim": 4},
    "mistral": WINDOW,
    "phi3": WINDOW,
    "gemma2": WINDOW,
    "gemma3_text": WINDOW,
    "embeddinggemma": {**WINDOW, "use_bidirectional_attention": True},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4},
    "xlnet": {"n_head": 4, "d_head": 8},
}
# Families under a name of their own.
TYPES = {"embeddinggemma": "gemma3_text"}

ENCODERS = """
    albert bert roberta xlm-roberta xlm-roberta-xl camembert distilbert electra mpnet data2vec-text ernie esm
    flaubert xlm ibert layoutlm luke megatron-bert rembert roformer roberta-prelayernorm roc_bert splinter
    squeezebert xlnet modernbert nomic_bert eurobert jina_embeddings_v3 gte t5 mt5 umt5 bart mbart mobilebert
    deberta deberta-v2 longformer big_bird xmod
""".split()
DECODERS = """
    gpt2 gpt_neo gptj gpt_neox opt bloom llama mistral qwen2 qwen3 gemma gemma2 gemma3_text embeddinggemma phi
    phi3 mixtral olmo olmo2 stablelm starcoder2 cohere granite smollm3 gpt_bigcode mpt persimmon qwen3_moe
    xglm biogpt falcon
""".split()
PADDING = "depends on how far rows are padded"
# What cannot be exported, and a part of why.
REFUSED_ENCODERS = {
    "convbert": PADDING,
    "fnet": PADDING,
    "nystromformer": PADDING,
    "yoso": "it calls YosoCumulation, code of Python that TorchScript cannot hold",
    "canine": "CanineModel has no table of token embeddings",
}
REFUSED_DECODERS = {"mamba": "MambaRMSNorm"}
CLASSIFIERS = {
    "encoders": "bert modernbert deberta deberta-v2 longformer mobilebert xmod bart mbart t5 mt5".split(),
    "decoders": "gpt2 gpt_neo opt bloom llama mistral qwen2 qwen3 gemma2 phi3 mixtral smollm3".split(),
}
TAGGERS = {
    "encoders": "bert deberta deberta-v2 longformer mobilebert xmod modernbert mt5".split(),
    "decoders": "gpt2 llama qwen2 mistral".split(),
}


def config(family: str, **more: object) -> transformers.PretrainedConfig:
    """A tiny one of the family."""
    kind = transformers.CONFIG_MAPPING[TYPES.get(family, family)]
    known = {*vars(kind()), *(getattr(kind, "attribute_map", None) or {})}
    sizes = {name: value for name, value in SMALL.items() if name in known}
    return kind(**{**sizes, **MORE.get(family, {}), **more})


def save(
    family: str,
    folder: Path,
    auto: type,
    decoder: bool,
    padding_side: str = "",
    types: bool = False,
    cls: str | None = None,
    **more: object,
) -> None:
    """A plain folder of transformers; decoders' batches are padded on the left, as theirs are."""
    tokenizer = tiny.byte_pairs("<s>", "</s>") if decoder else tiny._wordpiece(bert=True)
    pad = "<pad>" if decoder else "[PAD]"
    torch.manual_seed(7)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": tokenizer.token_to_id(pad)}
    auto.from_config(config(family, **sizes, **more)).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token="</s>" if decoder else "[SEP]",
        unk_token="<unk>" if decoder else "[UNK]",
        cls_token=cls,
        model_max_length=tiny.MAX_TOKENS,
        padding_side=padding_side or ("left" if decoder else "right"),
        model_input_names=["input_ids", "attention_mask", *["token_type_ids"] * types],
    ).save_pretrained(folder)


def _embedder(family: str, decoder: bool, refused: str = "") -> Kind:
    def build(folder: Path) -> None:
        save(family, folder / "encoder", transformers.AutoModel, decoder)
        pooling = "lasttoken" if decoder and family != "embeddinggemma" else "mean"
        stages = [Transformer(str(folder / "encoder")), Pooling(HIDDEN, pooling), Normalize()]
        SentenceTransformer(modules=stages, device="cpu").save(str(folder))

    def encode(folder: Path, inputs: Columns) -> Columns:
        model = SentenceTransformer(str(folder), device="cpu")
        return {"embedding": [model.encode([text])[0].tolist() for text in inputs["text"]]}

    call = "SentenceTransformer.encode"
    return Kind(family, "embedding", build, _texts(), call, encode, refused=refused)


def _classifier(family: str, decoder: bool, refused: str = "") -> Kind:
    auto = transformers.AutoModelForSequenceClassification
    build = functools.partial(save, family, auto=auto, decoder=decoder, id2label=LABELS)
    task = "classification"
    flags = ("--task", task, "--max-tokens", str(tiny.MAX_TOKENS)) if family in ("xlnet", "mpt") else ()
    pipeline = "text classification pipeline"
    return Kind(family, task, build, _texts(), pipeline, tiny_tasks._classify, flags, refused)


def _tagger(family: str, decoder: bool) -> Kind:
    auto = transformers.AutoModelForTokenClassification
    labels = dict(enumerate(tiny_tasks.TAGS))
    build = functools.partial(save, family, auto=auto, decoder=decoder, id2label=labels)
    pipeline = "token classification pipeline"
    return Kind(family, "token-classification", build, _texts(), pipeline, tiny_tasks._tag)


def _reranker(family: str, decoder: bool = False, labels: int = 1) -> Kind:
    def build(folder: Path) -> None:
        auto = transformers.AutoModelForSequenceClassification
        save(family, folder / "head", auto, decoder, num_labels=labels)
        CrossEncoder(str(folder / "head"), device="cpu").save(str(folder))

    def predict(folder: Path, inputs: Columns) -> Columns:
        # One pair at a time, so that no padding can disturb.
        rows = [tiny_tasks._rank(folder, {name: [value] for name, value in pair}) for pair in _pairs(inputs)]
        return {name: [row[name][0] for row in rows] for name in rows[0]}

    inputs = tiny_tasks.MODELS["rerank-bert"].inputs
    name = family if labels == 1 else f"{family}, {labels} labels"
    return Kind(name, "rerank", build, inputs, "CrossEncoder.predict", predict)


def _pairs(inputs: Columns) -> list[list[tuple[str, str]]]:
    columns = ([(name, value) for value in values] for name, values in inputs.items())
    return [list(pair) for pair in zip(*columns, strict=True)]


def _static() -> Kind:
    def build(folder: Path) -> None:
        torch.manual_seed(1)
        stages = [StaticEmbedding(tiny._wordpiece(bert=True), embedding_dim=24), Normalize()]
        SentenceTransformer(modules=stages, device="cpu").save(str(folder))

    inputs = {"text": [text for text in MIXED if text]}
    encode = _embedder("bert", decoder=False).expected
    return Kind("static", "embedding", build, inputs, "SentenceTransformer.encode", encode)


def _sparse(family: str) -> Kind:
    def build(folder: Path) -> None:
        save(family, folder / "mlm", transformers.AutoModelForMaskedLM, decoder=False)
        first = Transformer(str(folder / "mlm"), transformer_task="fill-mask")
        SparseEncoder(modules=[first, SpladePooling("max")], device="cpu").save(str(folder))

    call = "SparseEncoder.encode"
    return Kind(family, "sparse-embedding", build, _texts(), call, tiny_tasks.embed_sparse)


def _program() -> Kind:
    def module() -> torch.nn.Module:
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def build(folder: Path) -> None:
        torch.jit.save(torch.jit.script(module()), folder / "model.pt")

    def call(folder: Path, inputs: Columns) -> Columns:
        with torch.no_grad():
            return {"y": [module()(torch.tensor([x]))[0].tolist() for x in inputs["x"]]}

    inputs = {"x": torch.randn((20, 4), generator=torch.Generator().manual_seed(3)).tolist()}
    columns = ("--input", "x FLOAT[4]", "--output", "y FLOAT[3]")
    return Kind("TorchScript", "program", build, inputs, "the module itself", call, columns)


def _refused(architecture: str, said: str) -> Kind:
    """What has no task: it is known by its name alone."""

    def build(folder: Path) -> None:
        text = json.dumps({"architectures": [architecture], "model_type": "bert"})
        (folder / "config.json").write_text(text, encoding="utf-8")

    return Kind(architecture, "none", build, {}, "", lambda folder, inputs: {}, refused=said)


def _texts() -> Columns:
    return {"text": list(MIXED)}


NO_TASK = {
    "LlamaForCausalLM": "it continues texts",
    "Qwen3ForCausalLM": "it continues texts",
    "GPT2LMHeadModel": "it continues texts",
    "T5ForConditionalGeneration": "it writes texts",
    "WhisperForConditionalGeneration": "it writes texts",
    "LlavaForConditionalGeneration": "it writes texts",
    "VisionEncoderDecoderModel": "it writes texts",
    "TapasForQuestionAnswering": "it answers questions about tables",
    "BertForMultipleChoice": "it chooses among several texts",
    "BertForNextSentencePrediction": "it tells whether a text follows another",
    "OwlViTForZeroShotObjectDetection": "it finds objects in images by their names",
    "SegformerForSemanticSegmentation": "it gives images",
    "DPTForDepthEstimation": "it gives images",
    "Wav2Vec2Model": "it takes audio",
    "Wav2Vec2ForAudioFrameClassification": "it takes audio",
    "ASTForAudioClassification": "it takes audio",
    "ClapAudioModelWithProjection": "it takes audio",
    "VideoMAEForVideoClassification": "it takes videos",
    "LayoutLMv3ForTokenClassification": "it takes images beside texts",
    "TimeSeriesTransformerForPrediction": "it goes on with series",
    "SamModel": "it takes points and boxes beside images",
}


def _all() -> list[Kind]:
    kinds = [_embedder(family, decoder=False) for family in ENCODERS]
    kinds += [_embedder(family, decoder=True) for family in DECODERS]
    kinds += [_static(), *map(_sparse, ("bert", "distilbert"))]
    for make, families in ((_classifier, CLASSIFIERS), (_tagger, TAGGERS)):
        kinds += [make(family, decoder=False) for family in families["encoders"]]
        kinds += [make(family, decoder=True) for family in families["decoders"]]
    kinds += [*map(_reranker, ("bert", "roberta", "modernbert", "deberta-v2", "xmod"))]
    kinds += [_reranker("bart", labels=3), _reranker("deberta-v2", labels=3), _reranker("qwen3", True)]
    kinds += JUDGES
    kinds += [*answers(save), *IMAGES, *SOUNDS, _program()]
    kinds += [_embedder(family, False, why) for family, why in REFUSED_ENCODERS.items()]
    kinds += [_embedder(family, True, why) for family, why in REFUSED_DECODERS.items()]
    kinds += [_classifier("xlnet", False, PADDING)]
    return kinds + [_refused(architecture, why) for architecture, why in NO_TASK.items()]


KINDS = _all()
