"""ONNX models of several kinds for Rust tests, and what ONNX Runtime's own Python gives with them.

Each is OUTPUT/<name>/model (a folder, or with one file model.onnx), and beside it reference.json as
for packages (fixtures.py). What only has to be refused has no reference. Seeded.
"""

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from sentence_transformers import SentenceTransformer

from .reference import embed
from .texts import MIXED
from .tiny import build_model
from .tiny_tasks import MODELS

Columns = Mapping[str, list]
# Of sentence-transformers, as an ONNX program and its own files.
ENCODERS = ("bert", "distilbert", "roberta", "mpnet", "gpt2", "gpt-neo")
# Of the tasks of `tiny_tasks`.
SCORERS = (
    "classification-bert",
    "classification-distilbert",
    "classification-roberta",
    "classification-mpnet",
    "rerank-bert",
    "rerank-roberta",
    "rerank-electra",
)
ROWS = 23
_VECTORS = ("last_hidden_state",)


def make(output: Path) -> None:
    """Writes all of them."""
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    for name in ENCODERS:
        _encoder(name, output / name)
    _quantised(output / "bert", output / "quantised")
    _external(output / "bert", output / "external")
    for name in SCORERS:
        _scorer(MODELS[name], output / name)
    _images(output / "images", rows_at_once=True)
    _images(output / "one-image", rows_at_once=False)
    _tables(output)
    _refused(output)


def write_reference(folder: Path, inputs: Columns, outputs: Columns) -> None:
    """Writes what is given, and expected."""
    text = json.dumps({"inputs": dict(inputs), "outputs": dict(outputs)}, ensure_ascii=False)
    (folder / "reference.json").write_text(text, encoding="utf-8")


class _Program(torch.nn.Module):
    """A model of transformers with positional arguments and one result."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        """Its first result."""
        more = {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}
        return self.model(**dict(zip(self.names, arguments, strict=True)), **more)[0]


def export_model(model: torch.nn.Module, names: list[str], result: str, path: Path) -> None:
    """As the exporters of sentence-transformers and optimum name things."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = torch.randint(5, 20, (2, 7))
    arguments = {
        "input_ids": ids,
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
        "token_type_ids": torch.zeros_like(ids),
    }
    rows = {0: "batch_size"}
    axes = {**rows, 1: "sequence_length"}
    torch.onnx.export(
        _Program(model.eval(), names),
        tuple(arguments[name] for name in names),
        str(path),
        input_names=names,
        output_names=[result],
        dynamic_axes={**dict.fromkeys(names, axes), result: axes if result in _VECTORS else rows},
        dynamo=False,
    )


def arguments_of(folder: Path) -> list[str]:
    """Those of the model's tokenizer that the model takes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = ("input_ids", "attention_mask", "token_type_ids")
    return [name for name in wanted if name in tokenizer.model_input_names]


def _encoder(architecture: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        build_model(architecture, Path(work))
        source = Path(work) / "model"
        model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager")
        shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
        program = folder / "model/onnx/model.onnx"
        export_model(model, arguments_of(source), "last_hidden_state", program)
        write_reference(folder, {"text": list(MIXED)}, {"embedding": embed(source, MIXED).tolist()})


def pooled_by_onnx_runtime(folder: Path, program: Path) -> list[list[float]]:
    """What ONNX Runtime gives for each text by itself, pooled by sentence-transformers."""
    session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as work:
        build_model("bert", Path(work))
        stages = list(SentenceTransformer(str(Path(work) / "model"), device="cpu"))[1:]
    embeddings = []
    for text in MIXED:
        tokens = tokenizer([text], truncation=True, return_tensors="np")
        [found] = session.run(None, {name: tokens[name] for name in names})
        mask = torch.from_numpy(tokens["attention_mask"])
        vectors = torch.from_numpy(found.astype(np.float32))
        features = {"token_embeddings": vectors, "attention_mask": mask}
        for stage in stages:
            features = stage(features)
        embeddings.append(features["sentence_embedding"][0].tolist())
    return embeddings


def _quantised(source: Path, folder: Path) -> None:
    """Programs of two precisions, and two that hold the same."""
    shutil.copytree(source / "model", folder / "model")
    programs = folder / "model/onnx"
    quantised = programs / "model_quantized.onnx"
    quantize_dynamic(programs / "model.onnx", quantised, weight_type=QuantType.QInt8)
    embeddings = pooled_by_onnx_runtime(folder / "model", quantised)
    write_reference(folder, {"text": list(MIXED)}, {"embedding": embeddings})
    shutil.copytree(folder / "model", folder / "ambiguous")
    shutil.copy(quantised, folder / "ambiguous/onnx/model_int8.onnx")


def _external(source: Path, folder: Path) -> None:
    """Weights in a file of their own."""
    shutil.copytree(source / "model", folder / "model")
    program = folder / "model/onnx/model.onnx"
    model = onnx.load(program)
    onnx.save_model(
        model, program, save_as_external_data=True, location="model.onnx_data", size_threshold=64
    )
    shutil.copy(source / "reference.json", folder / "reference.json")


def _scorer(model: object, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work)
        model.build(source)
        auto = transformers.AutoModelForSequenceClassification
        loaded = auto.from_pretrained(source, attn_implementation="eager")
        ignored = shutil.ignore_patterns("*.safetensors", "head")
        shutil.copytree(source, folder / "model", ignore=ignored)
        export_model(loaded, arguments_of(source), "logits", folder / "model/onnx/model.onnx")
        write_reference(folder, model.inputs, model.expected(source, model.inputs))


def _run(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _columns(arrays: Mapping[str, np.ndarray]) -> dict[str, list]:
    """A value of each row: a number, a text, or the numbers of a vector."""
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    return {
        name: [row[0] if len(row) == 1 else row for row in rows.tolist()]
        for name, rows in flat.items()
    }


def _images(folder: Path, rows_at_once: bool) -> None:
    """A classifier of images, for any number of them or for one, as many on the hub are."""
    torch.manual_seed(11)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    ).eval()
    path = folder / "model.onnx"
    folder.mkdir(parents=True)
    axes = {"dynamic_axes": {"pixel_values": {0: "N"}, "logits": {0: "N"}}} if rows_at_once else {}
    torch.onnx.export(
        layers,
        (torch.zeros(1, 3, 16, 16),),
        str(path),
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamo=False,
        **axes,
    )
    pixels = np.random.default_rng(5).random((ROWS, 3, 16, 16), np.float32)
    parts = [pixels] if rows_at_once else [pixels[row : row + 1] for row in range(ROWS)]
    logits = np.concatenate([_run(path, {"pixel_values": part})["logits"] for part in parts])
    write_reference(folder, _columns({"pixel_values": pixels}), _columns({"logits": logits}))


def _tables(output: Path) -> None:
    """Tabular models, converted by their own tools."""
    from onnxmltools.convert.common.data_types import FloatTensorType as Float
    from onnxmltools.convert import convert_xgboost
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from xgboost import XGBClassifier, XGBRegressor

    random = np.random.default_rng(3)
    table = random.normal(size=(120, 4)).astype(np.float32)
    classes = (table[:, 0] + table[:, 1] > 0).astype(np.int64) + (table[:, 2] > 1)
    names = np.array(["low", "größer", "high"])[classes]
    amount = (3 * table[:, 0] - table[:, 3]).astype(np.float32)
    rows = table[:ROWS]

    def write(name: str, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
        (output / name).mkdir(parents=True)
        path = output / name / "model.onnx"
        path.write_bytes(model.SerializeToString())
        write_reference(output / name, _columns(inputs), _columns(_run(path, inputs)))

    plain = {"zipmap": False}
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, classes)
    write("logistic", to_onnx(scaled, rows[:1], options=plain), {"X": rows})
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(table, names)
    write("forest", to_onnx(forest, rows[:1], options=plain), {"X": rows})
    boosted = GradientBoostingRegressor(n_estimators=9, random_state=0).fit(table, amount)
    write("boosted", to_onnx(boosted, rows[:1]), {"X": rows})

    frame = np.column_stack([names.astype(object), table[:, 0], table[:, 1]])
    columns = ColumnTransformer([("one", OneHotEncoder(), [0]), ("two", StandardScaler(), [1, 2])])
    mixed = make_pipeline(columns, LogisticRegression()).fit(frame, classes)
    types = [("colour", StringTensorType([None, 1]))]
    types += [(name, FloatTensorType([None, 1])) for name in ("size", "weight")]
    inputs = {
        "colour": names[:ROWS, None].astype(object),
        "size": rows[:, :1],
        "weight": rows[:, 1:2],
    }
    write("mixed", to_onnx(mixed, initial_types=types, options=plain), inputs)
    (output / "zipmap").mkdir()
    zipped = to_onnx(scaled, rows[:1])
    (output / "zipmap/model.onnx").write_bytes(zipped.SerializeToString())

    settings = {"n_estimators": 7, "max_depth": 3, "n_jobs": 1}
    declared = [("X", Float([None, 4]))]
    one = convert_xgboost(XGBClassifier(**settings).fit(table, classes), initial_types=declared)
    write("xgboost-classifier", one, {"X": rows})
    two = convert_xgboost(XGBRegressor(**settings).fit(table, amount), initial_types=declared)
    write("xgboost-regressor", two, {"X": rows})


def _graph(
    nodes: list, inputs: dict[str, list], outputs: dict[str, list], opset: int = 20, **more: object
) -> onnx.ModelProto:
    def values(shapes: dict[str, list]) -> list:
        return [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in shapes.items()
        ]

    weights = more.pop("weights", [])
    graph = helper.make_graph(nodes, "made", values(inputs), values(outputs), weights)
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def _refused(output: Path) -> None:
    """Models that no query can use, or not with every row; one for each reason."""
    number, integer = TensorProto.FLOAT, TensorProto.INT64
    add = [helper.make_node("Add", ["a", "b"], ["c"])]
    relu = [helper.make_node("Relu", ["a"], ["b"])]
    custom = [helper.make_node("Sentencepiece", ["a"], ["b"], domain="ai.onnx.contrib")]
    ids = [helper.make_node("Identity", ["input_ids"], ["last_hidden_state"])]
    rows = {"a": (number, ["N", 2]), "b": (number, ["N", 2])}
    tokens = {name: (integer, ["batch", "length"]) for name in ("input_ids", "position_ids")}
    models: dict[str, onnx.ModelProto] = {
        "opset": _graph(relu, {"a": rows["a"]}, {"b": rows["b"]}, opset=99),
        "operator": _graph(
            custom,
            {"a": rows["a"]},
            {"b": rows["b"]},
            opsets=[helper.make_opsetid("ai.onnx.contrib", 1)],
        ),
        "contradiction": _graph(
            add, {"a": (number, ["N", 2]), "b": (number, [1, 2])}, {"c": (number, ["N", 2])}
        ),
        "dynamic": _graph(relu, {"a": (number, ["N", "width"])}, {"b": (number, ["N", "width"])}),
        "four-rows": _graph(relu, {"a": (number, [4, 2])}, {"b": (number, [4, 2])}),
        "bytes": _graph(
            [helper.make_node("Cast", ["a"], ["b"], to=number)],
            {"a": (TensorProto.UINT8, ["N", 2])},
            {"b": (number, ["N", 2])},
        ),
        "shape": _graph(
            [helper.make_node("MatMul", ["a", "b"], ["c"])],
            {"a": (number, ["N", 2]), "b": (number, ["N", 3])},
            {"c": (number, ["N", 2])},
        ),
        "index": _graph(
            [helper.make_node("Gather", ["table", "i"], ["row"])],
            {"i": (integer, ["N"])},
            {"row": (number, ["N", 2])},
            weights=[helper.make_tensor("table", number, [2, 2], [0.0, 1.0, 2.0, 3.0])],
        ),
        "position": _graph(ids, tokens, {"last_hidden_state": (integer, ["batch", "length"])}),
    }
    for name, model in models.items():
        folder = output / "refused" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
