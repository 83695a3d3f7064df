"""Texts to vectors on the CPU cores of a machine with PyTorch 2.11, OpenVINO and ONNX Runtime, and no network or
Rust: one with AVX-512, say. Forebay in each precision beside what somebody writes by hand (`benches/peers`).

    python3 benches/device/cpu.py PACKED SOURCE [--output FOLDER] [--rounds 3] [--rows 8000] [--cores 2]

PACKED is the folder of benches/device/pack.sh, SOURCE that of all-MiniLM-L6-v2 as sentence-transformers has it.
Packages are exported here. Each engine runs in a process of its own, on the same cores, over the same rows, whose
copies only Forebay computes once; a round runs all of them, each round in another order. Vectors are compared with
those of sentence-transformers, which runs once. Prints a table last, which is in the JSON file too.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benches/peers"
MODEL = "all-minilm-l6-v2"
SEED = 42
# By which int8 is calibrated and judged.
SAMPLE_ROWS = 512


@dataclass(frozen=True)
class Engine:
    """What computes the vectors."""

    name: str
    # Of Forebay: the package and its precision.
    package: str = ""
    precision: str = "fp32"
    # Of a peer: its module.
    module: str = ""


ENGINES = (
    Engine("sentence-transformers", module="engines.pytorch"),
    Engine("Forebay, fp32", "torch"),
    Engine("Forebay, bf16", "torch", "bf16"),
    Engine("Forebay, ONNX, fp32", "onnx"),
    Engine("Forebay, ONNX, int8", "int8", "int8"),
    Engine("OpenVINO, a script", module="engines.openvino_script"),
    Engine("ONNX Runtime, a script", module="engines.onnxruntime_script"),
)


@dataclass
class Bench:
    """Where all is, and what was measured so far."""

    binary: Path
    environment: dict[str, str]
    data: Path
    scratch: Path
    found: dict[str, dict] = field(default_factory=dict)

    def command(self, engine: Engine, output: Path) -> list[str]:
        """What runs an engine."""
        if engine.module:
            return [sys.executable, "-m", engine.module, "embed", str(self.data), str(output)]
        options = f"'device' = 'cpu', 'precision' = '{engine.precision}'"
        statements = (
            f"CREATE TEMPORARY MODEL m LOCATION '{self.scratch / engine.package}' WITH ({options})",
            f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{self.data}/rows/'",
            "COPY (SELECT id, embedding FROM ml_predict(TABLE t, MODEL m, DESCRIPTOR(text))) "
            f"TO '{output}/' STORED AS PARQUET",
            "SELECT 'written' AS state",
        )
        return [str(self.binary), "shell", "--quiet", "--format", "csv", "-c", ";".join(statements)]

    def turn(self, engine: Engine) -> None:
        """One engine once; one that failed does not run again."""
        import measure

        seen = self.found.setdefault(engine.name, {"runs": []})
        if "error" in seen:
            return
        at = len(seen["runs"])
        output = self.scratch / "output" / f"{engine.name}-{at}"
        output.parent.mkdir(exist_ok=True)
        environment = self.environment if not engine.module else os.environ.copy()
        cores = os.sched_getaffinity(0)
        try:
            run = measure.run(self.command(engine, output), cores, environment, self.scratch / "log")
            seen["runs"].append(run.as_json() | self.compared(output))
            print(f"{engine.name:24} {run.seconds:7.2f} s", file=sys.stderr, flush=True)
        except (measure.RunError, OSError, ValueError) as error:
            seen["error"] = str(error)[-400:]
            print(f"{engine.name}: {error}", file=sys.stderr, flush=True)

    def compared(self, output: Path) -> dict[str, float]:
        """How far the vectors are from the first ones."""
        import check
        import numpy as np
        from engines import tables

        vectors = tables.matrix(check.read(output, "embed")["embedding"])
        path = self.scratch / "reference.npy"
        if not path.exists():
            np.save(path, vectors)
        expected = np.load(path)
        if vectors.shape != expected.shape:
            raise ValueError(f"{len(vectors)} rows, expected {len(expected)}")
        cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1)
        return {
            "max_difference": float(np.abs(vectors - expected).max()),
            "min_cosine": float(cosines.min()),
            "mean_cosine": float(cosines.mean()),
        }


def export(exporter: Path, source: Path, output: Path, *options: str) -> None:
    """A package of the exporter's, by this Python."""
    request = ("--source", source, "--output", output, "--license", "Apache-2.0", *options)
    command = [str(exporter), "-m", "forebay.export", *map(str, request)]
    given = os.environ | {"PYTHONPATH": f"{ROOT / 'python'}:{os.environ['PYTHONPATH']}"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=given)


def plain_onnx(source: Path, path: Path) -> None:
    """The model as the scripts take it: a vector for each token."""
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(source, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(ids, mask, types).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    given = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    axes = {name: {0: "rows", 1: "tokens"} for name in [*names, "hidden"]}
    path.parent.mkdir(parents=True)
    options = {"input_names": names, "output_names": ["hidden"], "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(Hidden(), given, str(path), **options)


def prepare(options: argparse.Namespace, scratch: Path) -> Bench:
    """The binary, the rows, the models."""
    import data
    import numpy as np
    import pyarrow.parquet as pq
    from engine import Forebay
    from engines import settings

    forebay = Forebay.unpack(options.packed, scratch, time.monotonic() + 3600)
    rows = scratch / "data"
    rows.mkdir()
    data.write_texts(np.random.default_rng(SEED), options.rows, rows)
    texts = pq.read_table(rows / "rows")["text"].to_pylist()
    sample = scratch / "sample.txt"
    sample.write_text("\n".join(dict.fromkeys(texts[:SAMPLE_ROWS])) + "\n")
    plain, rounded = ("--format", "onnx"), ("--precision", "int8", "--sample", str(sample))
    packages = {"torch": (), "onnx": plain, "int8": (*plain, *rounded)}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: export(options.exporter, options.source, scratch / name, *packages[name]), packages))
    # The scripts look for the model where a checkout has it.
    for link, target in ((settings.MINILM, options.source), (settings.MINILM_PACKAGE, scratch / "torch")):
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target.resolve())
    plain_onnx(options.source, rows / "models/onnx/onnx/model.onnx")
    found = importlib.util.find_spec("onnxruntime").submodule_search_locations[0]
    environment = forebay.environment | {"FOREBAY_ONNXRUNTIME": f"{found}/capi"}
    return Bench(scratch / "forebay", environment, rows, scratch)


def cores_of(count: int) -> set[int]:
    """So many that are no threads of one another, if the machine says which are."""
    def of_one(core: int) -> str:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return siblings.read_text() if siblings.exists() else str(core)

    found = sorted(os.sched_getaffinity(0))
    first = {of_one(core): core for core in reversed(found)}
    apart = sorted(first.values())
    return set((apart + [core for core in found if core not in apart])[:count])


def limit(bench: Bench) -> dict[str, float]:
    """The matrix products of the model at the peak of these cores, and tokenizing."""
    command = [sys.executable, "-m", "limit", "embed", str(bench.data)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr[-400:]}
    return json.loads(done.stdout.splitlines()[-1])


def about(cores: set[int], options: argparse.Namespace) -> dict[str, object]:
    """The machine."""
    lines = open("/proc/cpuinfo").read().splitlines()
    of = lambda key: next((line.split(":")[1].strip() for line in lines if line.startswith(key)), "")
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    names = ("torch", "openvino", "onnxruntime", "sentence-transformers")
    checkout = options.packed / "checkout"
    return {
        "date": time.strftime("%F"),
        "checkout": checkout.read_text().strip() if checkout.is_file() else "unknown",
        "cpu": of("model name"),
        "instructions": [name for name in wanted if name in of("flags").split()],
        "cores": len(cores),
        "rows": options.rows,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }


def table(said: dict[str, object], found: dict[str, dict], ideal: dict[str, float]) -> str:
    """The last thing printed."""
    lines = [f"{said['cpu']}, {said['cores']} cores, {said['rows']} texts, {' '.join(said['instructions'])}"]
    for name, seen in found.items():
        if not seen["runs"]:
            lines.append(f"{name:24} failed: {seen.get('error')}")
            continue
        middle = statistics.median(run["seconds"] for run in seen["runs"])
        run = seen["runs"][-1]
        off = f"off by {run['max_difference']:.1e}, least cosine {run['min_cosine']:.5f}"
        lines.append(f"{name:24} {middle:7.2f} s {run['rss_peak'] / 1e6:6.0f} MB  {off}")
    lines.append(f"limit {ideal}")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packed", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--output", type=Path, default=Path.cwd(), help="folder of the JSON file")
    parser.add_argument("--exporter", type=Path, default=sys.executable, help="another Python, for exports (tools/python)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    everywhere = f"{PEERS}:{os.environ.get('PYTHONPATH', '')}"
    os.environ |= {"PYTHONPATH": everywhere, "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(PEERS))
    with tempfile.TemporaryDirectory(prefix="forebay-cpu-") as scratch:
        bench = prepare(options, Path(scratch))
        cores = cores_of(options.cores)
        os.sched_setaffinity(0, cores)
        said = about(cores, options)
        ideal = limit(bench)
        for at in range(options.rounds):
            others = ENGINES[1:]
            turn = at % len(others)
            for engine in (*(ENGINES[:1] if at == 0 else ()), *others[turn:], *others[:turn]):
                bench.turn(engine)
            options.output.mkdir(parents=True, exist_ok=True)
            path = options.output / f"{said['date']}-embed-{len(cores)}-cores.json"
            path.write_text(json.dumps({**said, "limit": ideal, "engines": bench.found}, indent=1) + "\n")
        print(table(said, bench.found, ideal))
    return 1 if any("error" in seen for seen in bench.found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
