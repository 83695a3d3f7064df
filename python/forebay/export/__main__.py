"""Runs the exporter; says which extra is missing where one is."""

import sys

MISSING = "export: {} is missing; install it: pip install 'forebay[export]'"


def run() -> int:
    """The exporter's exit code."""
    try:
        from .command import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "forebay"):
            raise
        print(MISSING.format(f"the Python package {package}"), file=sys.stderr)
        return 1
    return main()


sys.exit(run())
