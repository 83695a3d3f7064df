"""ONNX Runtime: one session, whose runs have a core each, from as many threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime

from engines import scripts, settings


def runner(path: Path) -> Callable[[list], list[np.ndarray]]:
    """Runs batches, as many at a time as there are cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def one(batch: dict[str, np.ndarray] | np.ndarray) -> np.ndarray:
        given = batch if isinstance(batch, dict) else {names[0]: batch}
        return session.run(None, given)[0]

    def run(batches: list) -> list[np.ndarray]:
        with ThreadPoolExecutor(settings.CORES) as threads:
            return list(threads.map(one, batches))

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
