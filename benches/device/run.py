"""Checks and measures Forebay on a machine with a GPU, PyTorch 2.11, no network and no Rust.

    python3 benches/device/run.py PACKED [--output FOLDER] [--minutes 8]

PACKED is the folder that benches/device/pack.sh made elsewhere: the binary and its library,
compressed, a tokenizer, and the commit of the checkout. Without a GPU everything runs on the CPU, on
fewer rows, with a note. Ends within the minutes given: what does not fit is left out, and named.
Prints a table last.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import benches
import checks
import inputs
import models
from engine import Forebay

# Of token ids and images: on a GPU, on a CPU.
ROWS = {"cuda": (20_480, 2_048), "cpu": (256, 64)}
RESERVE_S = 20.0
LEFT_OUT = "left out: no time"


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packed", type=Path)
    parser.add_argument("--output", type=Path, default=Path.cwd(), help="folder of the JSON file")
    parser.add_argument("--minutes", type=float, default=8.0)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes - RESERVE_S
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = describe(device, options.packed)
    with tempfile.TemporaryDirectory(prefix="forebay-device-") as scratch:
        bed = make(options.packed, Path(scratch), deadline, device)
        seen = {name: attempt(name, check, bed) for name, check in checks.CHECKS.items()}
        rates = {name: measure(name, bench, bed) for name, bench in benches.plan(bed).items()}
    benches.compare_precisions(rates)
    result = {**about, "checks": seen, "benches": rates}
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{time.strftime('%F')}-device-{device}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(f"written to {path}")
    failed = any(check["outcome"] == "FAILED" for check in seen.values())
    return 1 if failed or any("error" in found for found in rates.values()) else 0


def make(packed: Path, scratch: Path, deadline: float, device: str) -> checks.Bed:
    """The binary, the models and the inputs."""
    forebay = Forebay.unpack(packed, scratch, deadline)
    tokenizer = packed / "tokenizer.json"
    tokenizer = tokenizer if tokenizer.exists() else None
    rows, images = ROWS[device]
    made = models.make(scratch / "models", tokenizer)
    given = inputs.make(scratch / "inputs", rows, images, tokenizer)
    say(f"ready, {forebay.left:.0f} s left")
    return checks.Bed(forebay, made, given, device)


def attempt(name: str, check: Callable[[checks.Bed], str], bed: checks.Bed) -> dict[str, str]:
    """One check."""
    if bed.forebay.left < 1:
        return {"outcome": LEFT_OUT, "seen": ""}
    start = time.monotonic()
    try:
        outcome, seen = "passed", check(bed)
    except subprocess.TimeoutExpired:
        outcome, seen = LEFT_OUT, ""
    except checks.FAILURES as error:
        outcome, seen = "FAILED", str(error)
    say(f"{name}: {outcome} ({time.monotonic() - start:.0f} s) {seen}")
    return {"outcome": outcome, "seen": seen}


def measure(name: str, bench: Callable[[], benches.Result], bed: checks.Bed) -> benches.Result:
    """One bench."""
    if bed.forebay.left < RESERVE_S:
        return {"note": LEFT_OUT}
    start = time.monotonic()
    try:
        found = bench()
    except subprocess.TimeoutExpired:
        found = {"note": LEFT_OUT}
    except checks.FAILURES as error:
        found = {"error": str(error)[-400:]}
    say(f"{name}: {found} ({time.monotonic() - start:.0f} s)")
    return found


def describe(device: str, packed: Path) -> dict[str, object]:
    """The machine, and what runs on it."""
    checkout = packed / "checkout"
    about: dict[str, object] = {
        "checkout": checkout.read_text().strip() if checkout.is_file() else "unknown",
        "date": time.strftime("%F"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": torch.get_num_threads(),
    }
    if device == "cpu":
        about["note"] = "no GPU was found: everything ran on the CPU, so no figure is about a GPU"
    return about


def table(result: dict) -> str:
    """The last thing printed."""
    lines = ["", f"{result['device']}, PyTorch {result['torch']}, {result['date']}"]
    lines += [f"NOTE: {result['note']}"] if "note" in result else []
    lines += ["", f"{'check':28} {'outcome':18} seen"]
    for name, check in result["checks"].items():
        lines.append(f"{name:28} {check['outcome']:18} {check['seen'][:70]}")
    lines += ["", f"{'bench':36} {'rows/s':>10} {'PyTorch':>10} {'ratio':>6}"]
    lines += [line(name, found) for name, found in result["benches"].items()]
    return "\n".join(lines)


def line(name: str, found: benches.Result) -> str:
    """One bench."""
    if "rows_per_s" not in found:
        return f"{name:36} {found.get('note') or found.get('error')}"
    raw = found.get("raw_rows_per_s")
    theirs = f" {raw:10,.0f} {found['ratio']:6.2f}" if raw else ""
    more = [f"device busy {found['device_utilization']}"] if "device_utilization" in found else []
    more += [f"{found['overlap']:.0%} of copies hidden"] if "overlap" in found else []
    more += [f"{found['over_fp32']:.2f} of fp32"] if "over_fp32" in found else []
    more += [found["not_compared"]] if "not_compared" in found else []
    return f"{name:36} {found['rows_per_s']:10,.0f}{theirs}{'  ' if more else ''}{', '.join(more)}"


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
