"""Checks and measures Forebay on a machine with a GPU, PyTorch 2.11, no network and no Rust.

    python3 benches/device/run.py PACKED [--output FOLDER] [--minutes 8] [--smoke] [--only REGEX]

PACKED is the folder that benches/device/pack.sh made elsewhere: the binary and its library,
compressed, a tokenizer, and the commit of the checkout. Models are made here. A smoke test of a minute
comes first, and ends all if it fails; with --smoke it is all, and with --only the steps follow whose names
the expression is found in. Results are written after each step. Without a GPU everything runs on the CPU, on
fewer rows, with a note. Ends within the minutes given: what does not fit is left out, and named. Prints a table
last.
"""

import argparse
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

import benches
import checks
import inputs
import models
from engine import Forebay
from rates import WORK, Found
from record import Record

# The last query may take so long, and the table is printed.
RESERVE_S = 20.0
SMOKE_S = 60.0
# No name of a step.
NOTHING = re.compile("(?!)")


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packed", type=Path)
    parser.add_argument("--output", type=Path, default=Path.cwd(), help="folder of the JSON file")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--smoke", action="store_true", help="end after the smoke test")
    parser.add_argument("--only", type=re.compile, help="of the steps after it, those with such names")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes - RESERVE_S
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{time.strftime('%F')}-device-{device}.json"
    record = Record(path, describe(device, options.packed), deadline)
    with tempfile.TemporaryDirectory(prefix="forebay-device-") as scratch:
        only = NOTHING if options.smoke else options.only
        everything(record, options.packed, Path(scratch), device, only)
    record.write()
    print(table(record))
    print(f"written to {path}")
    return 1 if record.failed else 0


def everything(
    record: Record, packed: Path, scratch: Path, device: str, only: re.Pattern[str] | None = None
) -> None:
    """The smoke test, and then all steps with such names, in the order of their worth."""
    bed = make(packed, scratch, record.deadline, device)
    smoke = time.monotonic()
    bed.forebay.deadline = min(record.deadline, smoke + SMOKE_S)
    for name, check in checks.SMOKE.items():
        record.step(name, lambda check=check: as_found(check(bed)))
    record.about["smoke_s"] = round(time.monotonic() - smoke, 1)
    unsure = [name for name in checks.SMOKE if "seen" not in record.steps[name]]
    if unsure:
        record.steps[unsure[0]].setdefault("error", f"not done after {SMOKE_S:.0f} s")
        return
    bed.forebay.deadline = record.deadline
    wanted = lambda name: only is None or only.search(name)
    for name, check in checks.CHECKS.items():
        if wanted(name):
            record.step(name, lambda check=check: as_found(check(bed)))
    for name, bench in benches.plan(bed).items():
        if wanted(name):
            record.step(name, bench, RESERVE_S)
    benches.compare_precisions(record.steps)


def as_found(seen: str | Found) -> Found:
    """What a check saw."""
    return seen if isinstance(seen, dict) else {"seen": seen}


def make(packed: Path, scratch: Path, deadline: float, device: str) -> checks.Bed:
    """The binary, the models and the inputs."""
    forebay = Forebay.unpack(packed, scratch, deadline)
    tokenizer = packed / "tokenizer.json"
    tokenizer = tokenizer if tokenizer.exists() else None
    work = WORK[device]
    made = models.make(scratch / "models", tokenizer)
    given = inputs.make(scratch / "inputs", work.rows, work.images, tokenizer)
    return checks.Bed(forebay, made, given, device, work)


def describe(device: str, packed: Path) -> Found:
    """The machine, and what runs on it."""
    checkout = packed / "checkout"
    about: Found = {
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


def table(record: Record) -> str:
    """The last thing printed."""
    about = record.about
    lines = ["", f"{about['device']}, PyTorch {about['torch']}, {about['date']}"]
    lines += [f"NOTE: {about['note']}"] if "note" in about else []
    lines += ["", *(line(name, found) for name, found in record.steps.items())]
    return "\n".join(lines)


def line(name: str, found: Found) -> str:
    """One step."""
    if "rows_per_s" not in found:
        outcome = "FAILED" if "error" in found else "passed" if "seen" in found else ""
        seen = found.get("error") or found.get("seen") or found.get("note")
        return f"{name:44} {outcome:7} {seen}"
    ratios = [f"{ratio:.2f} of {peer}" for peer, ratio in found.get("ratios", {}).items()]
    more = [f"{found['hidden']:.0%} of copies hidden"] if "hidden" in found else []
    more += [f"{found['over_fp32']:.2f} of fp32"] if "over_fp32" in found else []
    more += [found["not_compared"]] if "not_compared" in found else []
    return f"{name:44} {found['rows_per_s']:10,.0f} rows/s  {', '.join([*ratios, *more])}"


if __name__ == "__main__":
    sys.exit(main())
