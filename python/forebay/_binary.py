"""The executable that this package carries, and what it is told of this Python."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import sys
from pathlib import Path

# Names another executable than the package's own: in a checkout there is none in the package.
OVERRIDE = "FOREBAY_BINARY"
NEEDED = "Linux on x86-64 with glibc 2.34 or newer"


class MissingBinary(RuntimeError):
    """The executable is not there, or this machine cannot run it."""


def path() -> Path:
    """Where the executable is."""
    if named := os.environ.get(OVERRIDE):
        return Path(named).absolute()
    return Path(__file__).parent / "bin/forebay"


def environment() -> dict[str, str]:
    """This process's environment, and in it the Python that it is and the torch that it would import.

    Whether that torch will do the executable says: it knows what it was built for.
    """
    environment = dict(os.environ)
    for name, value in (("FOREBAY_PYTHON", sys.executable), ("FOREBAY_LIBTORCH", _torch_libraries())):
        if value and not environment.get(name):
            environment[name] = os.fspath(value)
    return environment


def problem(error: OSError) -> MissingBinary:
    """Why the executable cannot be run, and what to do about it."""
    binary = path()
    if error.errno == errno.ENOENT and not binary.exists():
        remedy = f"install it again (pip install --force-reinstall forebay), or set {OVERRIDE}"
        return MissingBinary(f"{binary} is missing: {remedy}")
    library, version = platform.libc_ver()
    here = f"{platform.system()} on {platform.machine()} with {library or 'another C library'} {version}"
    said = f"{binary} cannot be run: {error.strerror}"
    return MissingBinary(f"{said}; it needs {NEEDED}, this is {here.rstrip()}")


def _torch_libraries() -> Path | None:
    """The folder with the libraries of the torch that `import torch` would find; nothing is imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = [Path(place, "lib") for place in (spec and spec.submodule_search_locations) or ()]
    return next((place for place in places if (place / "libtorch_cpu.so").is_file()), None)
