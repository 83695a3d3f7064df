"""The task `object-detection`: pixels → for each object that is found its label, score and box.

They are those of transformers' object detection pipeline from `THRESHOLD` on. Boxes are in shares of the
image's width and height, as a program does not know how large the image was.
"""

import math
from pathlib import Path

import torch
import transformers

from .candidate import LABELS_FILE, Candidate, Column, Original, Tensors
from .errors import ExportError
from .huggingface import labels_of, load, load_config, write_labels
from .preprocessing import Preprocessing

# The pipeline's own is 0.5; who wants it can say so in SQL.
THRESHOLD = 0.1
# Those that choose one class for each query, or none.
ONE_CLASS = ("detr", "table-transformer", "yolos")
# Those that score every class of every query, and how many of these scores count: as many as queries if None.
EVERY_CLASS = {
    "rt_detr": None,
    "rt_detr_v2": None,
    "conditional_detr": 100,
    "deformable_detr": 100,
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BILINEAR, SIDE = 2, 800
_SIDES = ("lefts", "tops", "rights", "bottoms")


class Detector(torch.nn.Module):
    """`[rows, 3, size, size]` pixels in; per object label, score and box out, and which of them count."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.is_of_every_class = model.config.model_type in EVERY_CLASS
        self.most = EVERY_CLASS.get(model.config.model_type)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Finds objects."""
        outputs = self.model(pixel_values=pixels)
        logits, boxes = outputs.logits, outputs.pred_boxes
        if self.is_of_every_class:
            queries, classes = logits.shape[1:]
            most = min(queries if self.most is None else self.most, queries * classes)
            scores, best = logits.sigmoid().flatten(1).topk(most, dim=1)
            labels = best % classes
            query = torch.div(best, classes, rounding_mode="floor")
            boxes = boxes.gather(1, query[..., None].expand(-1, -1, 4))
        else:
            # The last class is that of no object.
            scores, labels = logits.softmax(-1)[..., :-1].max(-1)
        x, y, width, height = boxes.unbind(-1)
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return labels, scores, *box, scores > THRESHOLD


def object_detection(folder: Path, images: bool) -> Candidate:
    """The candidate of a detector: of pixels, or of image files."""
    config = load_config(folder)
    known = (*ONE_CLASS, *EVERY_CLASS)
    if config.model_type not in known:
        raise ExportError(
            f"{folder}: detectors of the kind {config.model_type} are not supported; {', '.join(known)} are"
        )
    model = load(folder, transformers.AutoModelForObjectDetection)
    labels, preprocessing = labels_of(model.config), Preprocessing.of(folder)
    size = _size(preprocessing)
    shape = (3, size, size)
    transform, column = Tensors(shape), Column("pixels", f"FLOAT[{math.prod(shape)}]", shape=shape)
    if images:
        transform = preprocessing.images(size, (MEAN, DEVIATION), BILINEAR)
        column = Column("image", "BINARY")
    processor = preprocessing.processor or _default_processor(config.model_type)

    @torch.no_grad()
    def detect(pixels: torch.Tensor) -> dict[str, object]:
        [found] = processor.post_process_object_detection(
            model(pixel_values=pixels), threshold=THRESHOLD, target_sizes=[(1, 1)]
        )
        boxes = zip(_SIDES, found["boxes"].unbind(-1), strict=True)
        return {
            "labels": [labels[index] for index in found["labels"].tolist()],
            "scores": found["scores"].tolist(),
            **{side: values.tolist() for side, values in boxes},
        }

    module = Detector(model).eval()
    with torch.no_grad():
        module(*transform.example(1, 1))  # Makes the constants that the model keeps.
    return Candidate(
        module=module,
        inputs=(column,),
        outputs=(
            Column("labels", "STRING[]", labels=LABELS_FILE),
            Column("scores", "FLOAT[]"),
            *(Column(side, "FLOAT[]") for side in _SIDES),
        ),
        transform=transform,
        description=f"Object detection, {len(labels)} labels",
        # The early layers are the widest: 64 channels at half the size, several at a time.
        activation_bytes=lambda rows: rows * 4 * 64 * size * size,
        write_files=lambda package: write_labels(labels, package),
        original=Original("transformers' post_process_object_detection", detect),
    )


def _default_processor(model_type: str) -> transformers.BaseImageProcessor:
    """Of a folder without one: only what it makes of the model's outputs counts."""
    if model_type in ("conditional_detr", "deformable_detr"):
        return transformers.DeformableDetrImageProcessor()
    return transformers.RTDetrImageProcessor() if model_type in EVERY_CLASS else transformers.DetrImageProcessor()


def _size(preprocessing: Preprocessing) -> int:
    """The side of the images: that of processors which resize both, or what others make of the shorter."""
    size = preprocessing.stated.get("size") or SIDE
    if isinstance(size, int):
        return size
    sides = dict(size)
    return sides.get("height") or sides.get("shortest_edge") or SIDE
