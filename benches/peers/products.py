"""The peak of matrix products on this machine: of the shapes of a text model, by the fastest of MKL, oneDNN,
OpenVINO and what Forebay makes of oneDNN's kernels of small products, on all cores at once with one thread each.

    python products.py

Prints GFLOP/s of all cores by shape and library.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engines import settings

# Of all-MiniLM-L6-v2: six layers of 384 numbers, four matrices of 384 x 384 and two of 384 x 1,536 in each.
LAYERS, HIDDEN, INNER = 6, settings.DIMENSIONS, 4 * settings.DIMENSIONS
ROWS = 1024
# Inputs, outputs, and how many of them a layer has.
SHAPES = {(HIDDEN, HIDDEN): 4, (HIDDEN, INNER): 1, (INNER, HIDDEN): 1}
MEASURE_S = 0.3
# A checkout has it.
LIBRARY = settings.ROOT / ".forebay/libforebay_torch.so"

Product = Callable[[], object]
# GFLOP/s by shape and library.
Peaks = dict[tuple[int, int], dict[str, float]]


def mkl(inputs: int, outputs: int) -> Product:
    """What PyTorch's linear layers call for fp32."""
    import torch

    x, weight, bias = torch.rand(ROWS, inputs), torch.rand(outputs, inputs), torch.rand(outputs)
    return lambda: torch.nn.functional.linear(x, weight, bias)


def onednn(inputs: int, outputs: int) -> Product:
    """The same library's other kernels, with weights packed once."""
    import torch

    x, bias = torch.rand(ROWS, inputs), torch.rand(outputs)
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.rand(outputs, inputs), ROWS)
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def blocks(inputs: int, outputs: int) -> Product:
    """The same kernels for one block after the other, as Forebay has them computed."""
    import torch

    torch.ops.load_library(LIBRARY)
    x, bias = torch.rand(ROWS, inputs), torch.rand(outputs)
    columns = 32
    weight = torch.rand(outputs // columns, inputs, columns)
    return lambda: torch.ops.forebay.linear_blocks(x, weight, outputs, bias, "none", "")


def openvino(inputs: int, outputs: int) -> Product:
    """A model of one product."""
    import openvino as ov
    from openvino import opset13 as ops

    x = ops.parameter([ROWS, inputs], np.float32)
    weight = ops.constant(np.random.rand(outputs, inputs).astype(np.float32))
    product = ops.matmul(x, weight, False, True)
    total = ops.add(product, ops.constant(np.random.rand(outputs).astype(np.float32)))
    threads = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    options = {**threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = ov.Core().compile_model(ov.Model([total], [x]), "CPU", options)
    request = model.create_infer_request()
    request.set_input_tensor(ov.Tensor(np.random.rand(ROWS, inputs).astype(np.float32)))
    return request.infer


LIBRARIES = {"mkl": mkl, "onednn": onednn, "openvino": openvino}
if LIBRARY.exists():
    LIBRARIES["blocks"] = blocks


def peaks() -> Peaks:
    """GFLOP/s of all cores."""
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return {
        shape: {name: rate(library, *shape) for name, library in LIBRARIES.items()}
        for shape in SHAPES
    }


def rate(library: Callable[[int, int], Product], inputs: int, outputs: int) -> float:
    """One thread per core, each with matrices of its own."""
    tasks = [library(inputs, outputs) for _ in range(settings.CORES)]
    for task in tasks:
        task()
    with ThreadPoolExecutor(settings.CORES) as threads:
        rates = list(threads.map(times, tasks))
    return sum(rates) * 2 * ROWS * inputs * outputs / 1e9


def times(task: Product) -> float:
    """Calls per second."""
    count, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < MEASURE_S:
        task()
        count += 1
    return count / took


def seconds(found: Peaks, batches: list[tuple[int, int]]) -> float:
    """What the products of these batches of rows of tokens take. Those inside attention are counted at the best
    rate of all, which they do not reach."""
    tokens = sum(rows * length for rows, length in batches)
    best = {shape: max(rates.values()) for shape, rates in found.items()}
    linear = sum(
        LAYERS * count * 2 * tokens * shape[0] * shape[1] / 1e9 / best[shape]
        for shape, count in SHAPES.items()
    )
    pairs = sum(rows * length * length for rows, length in batches)
    attention = LAYERS * 2 * 2 * pairs * HIDDEN / 1e9 / max(best.values())
    return linear + attention


def told(found: Peaks) -> dict[str, float]:
    """For the result file."""
    return {
        f"gflops_{inputs}x{outputs}_{name}": rate
        for (inputs, outputs), rates in found.items()
        for name, rate in rates.items()
    }


if __name__ == "__main__":
    print(json.dumps({key: round(value, 1) for key, value in told(peaks()).items()}))
