"""The families of images, and of texts beside them, that kinds.py tries."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from PIL import Image

from forebay.export import tiny, tiny_lists, tiny_tasks
from forebay.export.reader import Columns
from forebay.export.texts import MIXED
from kinds import Kind

SIDE = 32
WIDE = 40
LABELS = {"id2label": {0: "negative", 1: "neutral", 2: "größer als"}}
TRANSFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 8,
}
VIT = {**TRANSFORMER, "initializer_range": 0.2}
STAGES = {"depths": [2, 2], "num_heads": [2, 2], "window_size": 2, "patch_size": 4, "embed_dim": 16}
SQUARE = {"height": SIDE, "width": SIDE}
# What processors are told.
BOTH = {"image_processor_type": "ViTImageProcessor", "size": SQUARE}
CROPPED = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": WIDE},
    "crop_size": SQUARE,
    "do_center_crop": True,
}
# An odd number of pixels is cut off.
CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SIDE + 7},
    "crop_size": SQUARE,
}
BEIT = {"image_processor_type": "BeitImageProcessor", "size": SQUARE, "do_center_crop": False}
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": SQUARE}
CONVNEXT = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_pct": 0.875,
}
CONVOLUTIONS = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}
SIGLIP_TEXT = {**TRANSFORMER, "max_position_embeddings": tiny.MAX_TOKENS, "projection_size": 32}

# Family → configuration's class, what it is told, and the processor; of models that may have a head.
FAMILIES: dict[str, tuple[str, dict, dict | None]] = {
    "vit": ("ViTConfig", VIT, BOTH),
    "beit": ("BeitConfig", VIT, BEIT),
    "swin": ("SwinConfig", {**STAGES, "image_size": SIDE}, BOTH),
    "swinv2": ("Swinv2Config", {**STAGES, "image_size": SIDE}, BOTH),
    "dinov2": ("Dinov2Config", {**VIT, "mlp_ratio": 2}, CROPPED),
    "dinov2_with_registers": ("Dinov2WithRegistersConfig", {**VIT, "mlp_ratio": 2}, CROPPED),
    "data2vec-vision": ("Data2VecVisionConfig", VIT, BOTH),
    "vit_msn": ("ViTMSNConfig", VIT, BOTH),
    "convnext": ("ConvNextConfig", {**CONVOLUTIONS, "image_size": SIDE}, CONVNEXT),
    "convnextv2": ("ConvNextV2Config", {**CONVOLUTIONS, "image_size": SIDE}, CONVNEXT),
    "resnet": ("ResNetConfig", {**RESNET, "image_size": SIDE}, CROPPED),
    "regnet": ("RegNetConfig", {**CONVOLUTIONS, "embedding_size": 8, "groups_width": 8}, None),
    "poolformer": ("PoolFormerConfig", CONVOLUTIONS, None),
    "mobilenet_v2": ("MobileNetV2Config", {"image_size": SIDE, "depth_multiplier": 0.25}, CROPPED),
    "focalnet": (
        "FocalNetConfig",
        {
            "image_size": SIDE,
            "embed_dim": 16,
            "depths": [1, 1],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
            "initializer_range": 0.3,
        },
        BOTH,
    ),
}
# Its processor swaps red and blue, which a package cannot say.
FAMILIES["mobilevit"] = (
    "MobileViTConfig",
    {
        "image_size": SIDE,
        "hidden_sizes": [16, 16, 16],
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
        "num_attention_heads": 2,
    },
    {**CROPPED, "image_processor_type": "MobileViTImageProcessor"},
)
ENCODERS: dict[str, tuple[str, dict, dict | None]] = {
    "dinov3_vit": ("DINOv3ViTConfig", VIT, BOTH),
    "clip_vision_model": ("CLIPVisionConfig", {**TRANSFORMER, "projection_dim": 16}, CLIP),
    "siglip_vision_model": ("SiglipVisionConfig", TRANSFORMER, SIGLIP),
}
HEADED = ("vit", "beit", "swin", "swinv2", "dinov2", "data2vec-vision", "convnext", "convnextv2", "resnet")
HEADED += ("regnet", "poolformer", "mobilenet_v2", "focalnet", "mobilevit")
_CLASSES = {
    "clip_vision_model": transformers.CLIPVisionModelWithProjection,
    "siglip_vision_model": transformers.SiglipVisionModel,
}


def _save(family: str, folder: Path, *, head: bool = False, **more: object) -> None:
    name, sizes, processor = {**FAMILIES, **ENCODERS}[family]
    config = getattr(transformers, name)(**sizes, **more)
    torch.manual_seed(5)
    if family in _CLASSES:
        model = _CLASSES[family](config)
    else:
        auto = transformers.AutoModelForImageClassification if head else transformers.AutoModel
        model = auto.from_config(config)
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def _inputs(processor: dict | None) -> Columns:
    if processor is not None:
        return {"image": tiny_tasks.image_files(smooth=True)}
    generator = torch.Generator().manual_seed(11)
    return {"pixels": torch.randn((5, 3 * 224 * 224), generator=generator).tolist()}


def _pixels(folder: Path, inputs: Columns) -> torch.Tensor:
    """By the folder's own processor, of Pillow, or as they are."""
    if "pixels" in inputs:
        return torch.tensor(inputs["pixels"]).reshape(-1, 3, 224, 224)
    processor = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    images = (Image.open(io.BytesIO(bytes.fromhex(file))).convert("RGB") for file in inputs["image"])
    return torch.cat([processor(images=image, return_tensors="pt")["pixel_values"] for image in images])


def _classify(folder: Path, inputs: Columns) -> Columns:
    model = transformers.AutoModelForImageClassification.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        rows = [model(pixel_values=row[None]).logits[0] for row in _pixels(folder, inputs)]
    multi = model.config.problem_type == "multi_label_classification"
    scores = [row.sigmoid() if multi else row.softmax(-1) for row in rows]
    labels = [model.config.id2label[int(row.argmax())] for row in scores]
    return {
        "label": labels,
        "score": [float(row.max()) for row in scores],
        "scores": [row.tolist() for row in scores],
    }


def _classifier(family: str, problem: str | None = None) -> Kind:
    more = {**LABELS, "problem_type": problem}
    build = functools.partial(_save, family, head=True, **more)
    processor = FAMILIES[family][2]
    flags = ("--images",) if processor else ()
    name = family if problem is None else f"{family}, several labels"
    task = "image-classification"
    refused = "makes other pixels than the package" if family == "mobilevit" else ""
    inputs = _inputs(processor)
    return Kind(name, task, build, inputs, "the model's logits", _classify, flags, refused)


def _embed(folder: Path, inputs: Columns, auto: type = transformers.AutoModel) -> Columns:
    model = auto.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        rows = [model(pixel_values=row[None]) for row in _pixels(folder, inputs)]
    pooled = [row.get("image_embeds") for row in rows]
    if pooled[0] is None:
        pooled = [row.get("pooler_output") for row in rows]
    if pooled[0] is None:
        pooled = [row.last_hidden_state[:, 0] for row in rows]
    return {"embedding": [row.flatten().tolist() for row in pooled]}


def _embedder(family: str) -> Kind:
    refused = "pools nothing" if family == "poolformer" else ""
    processor = {**FAMILIES, **ENCODERS}[family][2]
    auto = _CLASSES.get(family, transformers.AutoModel)
    call = functools.partial(_embed, auto=auto)
    flags = ("--images",) if processor else ()
    build = functools.partial(_save, family)
    return Kind(family, "image-embedding", build, _inputs(processor), "pooler_output", call, flags, refused)


def _siglip(folder: Path) -> None:
    tokenizer = tiny._unigram()
    torch.manual_seed(3)
    text = {**SIGLIP_TEXT, "vocab_size": tokenizer.get_vocab_size()}
    config = transformers.SiglipConfig(text_config=text, vision_config=TRANSFORMER)
    transformers.SiglipModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="</s>",
        model_max_length=tiny.MAX_TOKENS,
        model_input_names=["input_ids"],
    ).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(SIGLIP), encoding="utf-8")


def _embed_siglip(folder: Path, inputs: Columns) -> Columns:
    model = transformers.SiglipModel.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        if "text" in inputs:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
            options = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
            rows = [tokenizer(text, **options)["input_ids"] for text in inputs["text"]]
            pooled = [model.get_text_features(input_ids=row).pooler_output[0] for row in rows]
        else:
            pixels = _pixels(folder, inputs)
            pooled = [model.get_image_features(row[None]).pooler_output[0] for row in pixels]
    return {"embedding": [(row / row.norm()).tolist() for row in pooled]}


def _halves(
    family: str, build: Callable[[Path], None], expected: Callable[[Path, Columns], Columns]
) -> list[Kind]:
    flags = ("--task", "clip-image", "--images")
    files = {"image": tiny_tasks.image_files(smooth=True)}
    text = Kind(
        family,
        "clip-text",
        build,
        {"text": list(MIXED)},
        "get_text_features",
        expected,
        ("--task", "clip-text"),
    )
    return [text, Kind(family, "clip-image", build, files, "get_image_features", expected, flags)]


DETECTORS = "detr table-transformer yolos rt_detr rt_detr_v2 conditional_detr deformable_detr".split()
DETECTED = tiny_lists.DETECTED


def _detector(folder: Path, family: str) -> None:
    if family == "yolos":
        tiny_lists.build_yolos(folder)
        return
    backbone = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    backbone = transformers.ResNetConfig(**backbone, out_features=["stage4"])
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 6, "init_std": 0.5}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "use_pretrained_backbone": False}
    sizes |= {"use_timm_backbone": False, "backbone": None, "backbone_config": backbone}
    kind = transformers.DetrConfig if family == "detr" else transformers.TableTransformerConfig
    tiny_lists.save_detector(kind(**sizes, **DETECTED), folder, "DetrImageProcessor")


def _detector_of_every_class(folder: Path, family: str) -> None:
    """RT-DETR and kin: no class is that of no object."""
    backbone = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    stages = ["stage2", "stage3", "stage4"]
    if family in ("rt_detr", "rt_detr_v2"):
        backbone = transformers.RTDetrResNetConfig(**backbone, layer_type="basic", out_features=stages)
        sizes = {"encoder_in_channels": [8, 16, 16], "feat_strides": [8, 16, 32], "encoder_hidden_dim": 32}
        sizes |= {"decoder_in_channels": [32, 32, 32], "d_model": 32, "num_queries": 6}
        sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_attention_heads": 4}
        sizes |= {"decoder_attention_heads": 4, "decoder_layers": 2, "hidden_expansion": 0.5}
        kind = transformers.RTDetrConfig if family == "rt_detr" else transformers.RTDetrV2Config
        processor = "RTDetrImageProcessor"
    else:
        backbone = transformers.ResNetConfig(**backbone, out_features=stages[-1:])
        sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 6, "init_std": 0.5}
        sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_feature_levels": 1}
        sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "use_pretrained_backbone": False}
        sizes |= {"use_timm_backbone": False, "backbone": None}
        is_conditional = family == "conditional_detr"
        kind = transformers.ConditionalDetrConfig if is_conditional else transformers.DeformableDetrConfig
        processor = "ConditionalDetrImageProcessor" if is_conditional else "DeformableDetrImageProcessor"
    torch.manual_seed(4)
    config = kind(**sizes, backbone_config=backbone, **DETECTED)
    model = transformers.AutoModelForObjectDetection.from_config(config)
    with torch.no_grad():  # Initial ones are such that nothing is found.
        for name, part in model.named_modules():
            if "class" in name and isinstance(part, torch.nn.Linear):
                torch.nn.init.normal_(part.weight, std=0.3)
                part.bias.copy_(torch.tensor([-1.0, -2.5]))
    model.save_pretrained(folder)
    size = {"size": {"height": 64, "width": 64}, "do_pad": False}
    text = json.dumps({"image_processor_type": processor, **size})
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def _detect(folder: Path, inputs: Columns) -> Columns:
    """What the library's pipeline gives, in shares of each image's sides."""
    processor = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    pipeline = transformers.pipeline(
        "object-detection", str(folder), image_processor=processor, threshold=0.1, device="cpu"
    )
    outputs: Columns = {"labels": [], "scores": [], "lefts": [], "bottoms": []}
    for file in inputs["image"]:
        image = Image.open(io.BytesIO(bytes.fromhex(file))).convert("RGB")
        prepared = pipeline.preprocess(image)
        prepared["target_size"] = torch.tensor([[1, 1]])
        found = pipeline.image_processor.post_process_object_detection(
            pipeline.forward(prepared), 0.1, prepared["target_size"]
        )[0]
        outputs["labels"].append([DETECTED["id2label"][label] for label in found["labels"].tolist()])
        outputs["scores"].append(found["scores"].tolist())
        outputs["lefts"].append(found["boxes"][:, 0].tolist())
        outputs["bottoms"].append(found["boxes"][:, 3].tolist())
    assert any(outputs["labels"])
    return outputs


def _detectors(family: str) -> Kind:
    make = _detector if family in ("detr", "table-transformer", "yolos") else _detector_of_every_class
    build = functools.partial(make, family=family)
    files = {"image": tiny_tasks.image_files(smooth=True)}
    call = "object detection pipeline"
    return Kind(family, "object-detection", build, files, call, _detect, ("--images",))


IMAGES = [
    *map(_classifier, HEADED),
    _classifier("vit", "multi_label_classification"),
    *map(_embedder, [name for name in (*FAMILIES, *ENCODERS) if name != "mobilevit"]),
    *map(_detectors, DETECTORS),
    *_halves("clip", tiny_tasks._build_clip, tiny_tasks._embed_clip),
    *_halves("siglip", _siglip, _embed_siglip),
]
