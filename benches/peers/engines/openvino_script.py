"""OpenVINO: its throughput hint makes a stream for each core, its queue keeps them busy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov

from engines import scripts, settings

# On CPUs with instructions for bf16 OpenVINO rounds to it unless it is told otherwise.
OPTIONS = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}


def runner(path: Path) -> Callable[[list], list[np.ndarray]]:
    """Runs batches, as many at a time as there are streams."""
    model = ov.Core().compile_model(path, "CPU", OPTIONS)
    queue = ov.AsyncInferQueue(model)

    def run(batches: list) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(batches)

        def keep(request: ov.InferRequest, at: int) -> None:
            found[at] = request.get_output_tensor(0).data.copy()

        queue.set_callback(keep)
        for at, batch in enumerate(batches):
            queue.start_async(batch, at)
        queue.wait_all()
        return found

    return run


def main() -> None:
    """Runs the command line."""
    run = settings.parse()
    if run.workload == "images":
        results = scripts.images(run, runner(run.data / "models/resnet18.onnx"))
    else:
        results = getattr(scripts, run.workload)(run, runner(scripts.model_file(run)))
    scripts.write(run, results)


if __name__ == "__main__":
    main()
