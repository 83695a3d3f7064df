"""The command `forebay`: becomes the executable that the package carries."""

from __future__ import annotations

import os
import sys

from . import _binary


def main() -> int:
    """Returns only if the executable cannot be run."""
    binary = os.fspath(_binary.path())
    try:
        os.execve(binary, [binary, *sys.argv[1:]], _binary.environment())
    except OSError as error:
        print(f"forebay: {_binary.problem(error)}", file=sys.stderr)
    return 1
