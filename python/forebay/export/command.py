"""Exports a model of sentence-transformers, transformers or torchvision as a model package.

    tools/python -m forebay.export --source FOLDER_OR_NAME --output PACKAGE

What can be exported, and to which columns, is in docs/models.md. Progress goes to stderr; the last
line on stdout is the package's path. Nothing appears at the output path until the program has been
reloaded and compared with the original model.
"""

import argparse
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from . import trust  # noqa: E402
from .candidate import Candidate  # noqa: E402
from .errors import ExportError  # noqa: E402 (the variables above count at import)
from .source import Source, check_stages, find_source, read_license  # noqa: E402
from .tasks import TASKS, check_options, find_task, make_candidate  # noqa: E402

if TYPE_CHECKING:
    from .compiled import Compiled

_COLUMN = re.compile(r"\w+ +[A-Za-z]+ *(\[[^\]]*\])?")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = _parse(arguments)
    try:
        path = export(options)
    except ExportError as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # Of the model's own code, mostly: a traceback helps nobody here.
        from .reasons import place_of, reason_of

        print(
            f"export: {options.source}: it cannot be exported: {type(error).__name__}{place_of(error)}: "
            f"{reason_of(error)}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("export: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(path)
    return 0


def export(options: argparse.Namespace) -> Path:
    """Does what the options say and returns the package's path."""
    trust.set_given(options.trust_remote_code)
    output = Path(options.output)
    if output.exists() and not options.force:
        raise ExportError(
            f"{output} exists; pass --force to replace it, or choose another --output"
        )
    if output.exists() and any(output.iterdir()) and not (output / "model.toml").exists():
        raise ExportError(f"{output} is not a model package, so --force does not replace it")
    _check_precision(options)
    if options.compile:
        from .compiled import check_compiler

        check_compiler()
    if options.format == "onnx":
        from .onnx_program import check_installed

        check_installed()
    source = find_source(options.source)
    task = find_task(source, options.task)
    check_options(source, task, options)
    if task == "embedding":
        check_stages(source.folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=output.parent, prefix=f".{output.name}.partial-"
    ) as partial:
        package = Path(partial) / "package"
        package.mkdir()
        _fill(package, source, task, options)
        if output.exists():
            output.rename(Path(partial) / "replaced")
        package.rename(output)
    return output


def _check_precision(options: argparse.Namespace) -> None:
    """Refuses options that would not count, or that something is missing for."""
    is_rounded = options.precision == "int8"
    if is_rounded and options.format != "onnx":
        raise ExportError(
            "--precision int8 is for programs in ONNX format: pass --format onnx, too. Half precisions "
            "need no export: packages say which of them their programs hold"
        )
    if is_rounded and options.sample is None:
        raise ExportError(
            "--precision int8 needs --sample FILE: texts as those of your queries, one per line, of which "
            "one half shows what numbers occur, and the other how far the result is off"
        )
    if options.compile and options.format == "onnx":
        raise ExportError("--compile is for what libtorch runs; leave it out, or --format onnx")
    if options.sample is not None and not is_rounded:
        raise ExportError("--sample is for --precision int8; leave it out")
    if is_rounded and not options.sample.is_file():
        raise ExportError(f"--sample {options.sample}: there is no such file")


def _fill(package: Path, source: Source, task: str, options: argparse.Namespace) -> None:
    """Writes all files of the package."""
    _say(f"loading {source.program or source.folder} for {task}")
    import transformers

    from .check import check_package, check_pixels
    from .package import PROGRAMS, About, write_description

    transformers.utils.logging.disable_progress_bar()
    candidate = make_candidate(source, task, options)
    candidate.write_files(package)

    make = _onnx_program if options.format == "onnx" else _torch_program
    determinism, precisions = make(package, candidate)
    compiled = _compiled(package, candidate, determinism, precisions) if options.compile else ()

    license_id = options.license or read_license(source.folder)
    if license_id is None:
        _say("warning: no license found in README.md; recorded as NOASSERTION (pass --license)")
    is_folder = Path(options.source).is_dir()
    default = options.source if source.program is None else source.program.stem
    origin = source.folder.name if is_folder else options.source
    if source.program is not None:
        origin = source.program.name
    about = About(
        runtime=options.format,
        name=options.name or _default_name(default),
        version=options.version,
        description=options.description or candidate.description,
        license=license_id or "NOASSERTION",
        source=options.origin or origin,
        determinism=determinism,
        precisions=precisions,
        compiled=compiled,
    )
    write_description(package, about, candidate)
    if candidate.original is not None and determinism == "stable":
        _say(f"comparing the package with {candidate.original.name}")
        _say(f"largest difference: {check_package(package, candidate):.1e}")
    if getattr(candidate.transform, "processor", None) is not None:
        steps = check_pixels(package, candidate.transform)
        _say(f"largest difference of pixels from the model's processor: {steps:.1f} of 255")
    if options.precision == "int8":
        from .quantised import quantise

        _say(f"rounding to 8 bits, by {options.sample}")
        quality = quantise(candidate, package, package / PROGRAMS["onnx"], options.sample)
        _say(f"int8: {quality}")
        write_description(package, replace(about, quality=quality), candidate)


def _torch_program(package: Path, candidate: Candidate) -> tuple[str, dict[str, float] | None]:
    """Writes and tests a TorchScript program; its determinism, and the half precisions that it holds."""
    from .precision import precisions_of
    from .program import test_program

    program = package / "model.pt"
    determinism = _trace(candidate, program)
    worst = test_program(candidate, program, determinism)
    _say(f"largest difference: {worst:.1e}")
    precisions = precisions_of(candidate, program)
    for name, off in precisions.items():
        _say(f"largest difference in {name}: {off:.1e}")
    return determinism, precisions


def _compiled(
    package: Path, candidate: Candidate, determinism: str, held: dict[str, float]
) -> tuple["Compiled", ...]:
    """Writes and tests the program as native code; in half precisions as far as that can be had."""
    from .compiled import targets, write_compiled

    found = []
    for target in targets(held):
        _say(f"compiling for {target.device} in {target.precision}, which takes minutes")
        try:
            about, worst = write_compiled(candidate, package, target, determinism, held)
        except ExportError as error:
            if target.precision == "fp32":
                raise
            _say(f"warning: {error}")
            continue
        _say(f"largest difference of {about.program}: {worst:.1e}")
        found.append(about)
    return tuple(found)


def _onnx_program(package: Path, candidate: Candidate) -> tuple[str, dict[str, float] | None]:
    """Writes and tests an ONNX program; its determinism. Nobody has tried it in half precision."""
    from .onnx_program import test_onnx, write_onnx

    with tempfile.TemporaryDirectory() as work:
        determinism = _trace(candidate, Path(work) / "model.pt")
    program = package / "model.onnx"
    write_onnx(candidate, program)
    worst = test_onnx(candidate, program, determinism)
    _say(f"largest difference: {worst:.1e}")
    return determinism, None


def _trace(candidate: Candidate, program: Path) -> str:
    """Writes a TorchScript program, and says whether it gives the same each time."""
    from .determinism import determinism_of
    from .program import write_program

    _say("tracing")
    write_program(candidate, program)
    determinism, reason = determinism_of(candidate, program)
    if reason:
        _say(f"warning: recorded as {determinism}: {reason}")
    _say("comparing the program with the model")
    return determinism


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="export", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--source",
        required=True,
        help="folder of the model, its Hugging Face name, or torchvision/NAME",
    )
    parser.add_argument(
        "--output",
        required=True,
        action="append",
        help="folder of the package to write; for a program of your own, also a column that it gives: "
        "'y FLOAT' (its folder is then the program's name, if it is not given)",
    )
    parser.add_argument(
        "--input",
        action="append",
        metavar="COLUMN",
        help="for a program of your own: a column that it takes: 'x FLOAT[4]'",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model, with your rights",
    )
    parser.add_argument(
        "--format",
        choices=("torch", "onnx"),
        default="torch",
        help="of the program: what libtorch runs, or what ONNX Runtime does (default: torch)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also compile the program to native code for this machine's CPUs, and its GPU if it has one",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "int8"),
        default="fp32",
        help="with --format onnx: what the program holds (default: fp32)",
    )
    parser.add_argument(
        "--sample",
        type=Path,
        help="with --precision int8: file of texts as those of queries, one per line; two with a tab "
        "between them for models of pairs",
    )
    parser.add_argument(
        "--task", choices=TASKS, help="what the model is for (default: what the source says)"
    )
    parser.add_argument(
        "--name", type=_name, help="name of the model in SQL (default: the source's name)"
    )
    parser.add_argument("--version", default="1", help="version of the package (default: 1)")
    parser.add_argument("--license", help="SPDX license of the weights (default: from README.md)")
    parser.add_argument("--description", help="one line for listings")
    parser.add_argument("--origin", help="where the weights come from (default: the source's name)")
    parser.add_argument(
        "--max-tokens", type=int, help="longest input (default: the model's max_seq_length)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="sound: length of the windows that the model takes (default: 10)",
    )
    parser.add_argument(
        "--normalize",
        action="store_true",
        help="images: the program takes values from 0 to 1 and normalizes them itself",
    )
    parser.add_argument(
        "--images",
        action="store_true",
        help="images: the model takes image files, which are decoded, resized and normalized for it",
    )
    parser.add_argument(
        "--weights", type=Path, help="torchvision: file of the weights (default: its download)"
    )
    parser.add_argument(
        "--labels", type=Path, help="torchvision: file with one label per line (default: ImageNet)"
    )
    parser.add_argument("--force", action="store_true", help="replace the package if it exists")
    options = parser.parse_args(arguments)
    # A column has a name and a type; what is no such pair is the folder.
    folders = [value for value in options.output if not _COLUMN.fullmatch(value)]
    options.results = [value for value in options.output if _COLUMN.fullmatch(value)]
    if len(folders) > 1 or (options.results and not options.input):
        parser.error(f"--output: {', '.join(options.output)}: expected one folder for the package")
    options.output = folders[0] if folders else _default_name(Path(options.source).stem)
    return options


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", text):
        raise argparse.ArgumentTypeError("use lower-case letters, digits, '.', '_' and '-'")
    return text


def _default_name(source: str) -> str:
    return (
        re.sub(r"[^a-z0-9._-]+", "-", Path(source).resolve().name.lower()).strip("-._") or "model"
    )


def _say(text: str) -> None:
    print(f"export: {text}", file=sys.stderr, flush=True)

