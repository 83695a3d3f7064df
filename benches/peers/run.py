"""Forebay beside what people use instead of it, and beside the limit of the machine.

    benches/peers/python benches/peers/run.py path/to/forebay
        [--rounds 3] [--scale 1] [--only embed] [--only images/daft_frame] [--defaults]

Each engine runs each workload in a process of its own, on the same cores, over the same rows; a
round runs all engines once, each round in another order. Results are compared before times are.
Writes JSON, a Markdown table and plots to benches/results/.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import check
import data
import limit
import measure
import report
from engines import forebay, settings
from workloads import BACKENDS, DEFAULTS, ENGINES, SCRIPTS, WORKLOADS

RESULTS = settings.ROOT / "benches/results"
REFERENCE = "pytorch"
LAUNCHER_SETS = ("LD_LIBRARY_PATH", "TORCH_USE_RTLD_GLOBAL")
LIMIT = "limit"
PACKAGES = ("daft", "datafusion", "pyspark", "ray", "sentence-transformers", "torch", "torchvision")
PACKAGES += ("transformers", "numpy", "pyarrow", "pillow")


@dataclass
class Bench:
    """The options, and what was measured so far."""

    options: argparse.Namespace
    scratch: Path
    found: dict[str, object] = field(default_factory=dict)
    failures: int = 0

    def workload(self, name: str, engines: list[str]) -> None:
        """All rounds of one workload."""
        rows = WORKLOADS[name].scaled(self.options.scale)
        folder = data.make(name, rows, self.options.data)
        result = {"title": WORKLOADS[name].title, "rows": rows, "limit": [], "engines": {}}
        self.found[name] = result
        for at in range(self.options.rounds):
            # Whoever is first finds the coldest caches, so it is somebody else each time.
            turn = at % len(engines)
            for engine in engines[turn:] + engines[:turn]:
                self.turn(name, engine, folder, result)

    def turn(self, name: str, engine: str, folder: Path, result: dict) -> None:
        """One engine once; one that failed does not run again."""
        entry = result["engines"].setdefault(engine, {"runs": []}) if engine != LIMIT else {}
        if "error" in entry:
            return
        try:
            if engine == LIMIT:
                result["limit"].append(self.limit(name, folder))
            else:
                entry["runs"].append(self.engine(name, engine, folder))
        except (measure.RunError, check.Disagreement) as error:
            self.failures += 1
            entry["error"] = str(error).strip().splitlines()[-1][:300]
            say(f"{name:12} {engine:24} failed: {error}")

    def engine(self, name: str, engine: str, folder: Path) -> dict[str, float]:
        """One run, and how far its rows are from the first run of this workload."""
        output = self.scratch / f"{name}-{engine}"
        shutil.rmtree(output, ignore_errors=True)
        run = settings.Run(name, folder, output, engine.endswith(DEFAULTS))
        command = command_of(engine.removesuffix(DEFAULTS), run, self.options.forebay)
        # What Forebay learned on this machine before, as another build perhaps, does not count.
        own = {**environment(engine), "FOREBAY_CATALOG": str(self.scratch / "catalog")}
        found = measure.run(command, cores(), own, self.scratch / "log")
        reference = self.scratch / f"{name}-reference"
        if not reference.exists():
            output.rename(reference)
            output = reference
        distance = check.agree(reference, output, name)
        say(f"{name:12} {engine:24} {found.seconds:8.2f} s {found.rss_peak / 1e6:8.0f} MB")
        return {**found.as_json(), **distance}

    def limit(self, name: str, folder: Path) -> dict[str, float]:
        """The model and the CPU part, each alone."""
        # The peak is that of the fastest library, which may be one of the backends'.
        python = settings.BACKENDS if WORKLOADS[name].backends else sys.executable
        command = [python, "-m", "limit", name, str(folder)]
        command += ["--forebay", str(self.options.forebay)]
        done = subprocess.run(command, env=environment(LIMIT), capture_output=True)
        if done.returncode != 0:
            raise measure.RunError(done.stderr.decode()[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        say(f"{name:12} {LIMIT:24} {found['ideal_s']:8.2f} s")
        return found


def command_of(engine: str, run: settings.Run, binary: Path) -> list[str]:
    """What runs a workload."""
    if engine == "forebay":
        return forebay.command(binary, run)
    if engine in BACKENDS and engine not in SCRIPTS:
        module = [settings.BACKENDS, "-m", "engines.sentence_backends", engine]
    else:
        python = settings.BACKENDS if engine in SCRIPTS else sys.executable
        module = [python, "-m", f"engines.{engine}"]
    defaults = ["--defaults"] if run.defaults else []
    return [*module, run.workload, str(run.data), str(run.output), *defaults]


def environment(engine: str) -> dict[str, str]:
    """For all processes: this folder's modules, no network, no reports of use. Forebay finds its
    libraries by itself, so it does not get what the launcher sets for PyTorch."""
    ours = {
        "PYTHONPATH": str(Path(__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "DO_NOT_TRACK": "true",
    }
    inherited = dict(os.environ)
    if engine == "forebay":
        for name in LAUNCHER_SETS:
            inherited.pop(name, None)
    return {**inherited, **ours}


def cores() -> set[int]:
    """Those that this process may use, and so everybody."""
    return os.sched_getaffinity(0)


def chosen(options: argparse.Namespace) -> dict[str, list[str]]:
    """The engines per workload."""
    found: dict[str, list[str]] = {}
    for name, workload in WORKLOADS.items():
        # The reference is first, so that all others are compared with it.
        engines = [REFERENCE, *(engine for engine in ENGINES if engine != REFERENCE)]
        engines += workload.backends
        if options.defaults and workload.has_defaults:
            engines += [engine + DEFAULTS for engine in ENGINES if engine != "forebay"]
        if name in limit.LIMITS:
            engines.append(LIMIT)
        wanted = [engine for engine in engines if is_asked(name, engine, options.only)]
        if wanted:
            found[name] = wanted
    return found


def is_asked(workload: str, engine: str, only: list[str]) -> bool:
    """Whether one of the choices is the workload, or both."""
    return not only or workload in only or f"{workload}/{engine}" in only


def machine(options: argparse.Namespace) -> dict[str, object]:
    """What it was measured on, and with what."""
    cpu = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line),
        platform.processor(),
    )
    version = [str(options.forebay), "--version"]
    said = subprocess.run(version, capture_output=True, text=True).stdout.strip()
    has_java = shutil.which("java") is not None
    java = has_java and subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    here = {package.name: package.version for package in importlib.metadata.distributions()}
    versions = {name: here.get(name, "none") for name in PACKAGES}
    return {
        "cores": settings.CORES,
        "cpu": cpu,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load_before": os.getloadavg()[0],
        "versions": {
            "forebay": f"{said.removeprefix('forebay ')} (checkout {settings.checkout()})",
            "python": platform.python_version(),
            **backends(),
            "java": java.splitlines()[0] if java else "none",
            **versions,
        },
    }


def backends() -> dict[str, str]:
    """Versions of the other environment, if it is there."""
    if not Path(settings.BACKENDS).exists():
        return {}
    names = ("openvino", "onnxruntime", "fastembed", "optimum-intel", "optimum-onnx")
    ask = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    command = [settings.BACKENDS, "-c", ask, *names]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(names, said, strict=True))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path, help="the release binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full number of rows")
    parser.add_argument("--only", action="append", default=[], metavar="WORKLOAD[/ENGINE]")
    parser.add_argument("--defaults", action="store_true", help="also each peer's tutorial")
    parser.add_argument("--data", type=Path, default=settings.ROOT / ".forebay/bench-peers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.forebay = options.forebay.resolve()
    options.data = options.data.resolve()
    return options


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parse()
    about = {
        "date": datetime.date.today().isoformat(),
        "scale": options.scale,
        "machine": machine(options),
    }
    name = f"{about['date']}-peers-cpu-{settings.CORES}-cores"
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as scratch:
        bench = Bench(options, Path(scratch))
        for workload, engines in chosen(options).items():
            bench.workload(workload, engines)
            report.write({**about, "workloads": bench.found}, options.results / name)
            for output in Path(scratch).iterdir():
                shutil.rmtree(output, ignore_errors=True)
    print((options.results / f"{name}.md").read_text())
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
