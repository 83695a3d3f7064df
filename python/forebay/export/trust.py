"""Whether code that comes with a model may run: only if the user said so."""

import sys

_given = False


def set_given(given: bool) -> None:
    """What the command line says."""
    global _given
    _given = given
    if given:
        print(
            "export: warning: code that comes with the model runs with your rights "
            "(--trust-remote-code)",
            file=sys.stderr,
            flush=True,
        )


def given() -> bool:
    """Whether the user trusts it."""
    return _given


def options() -> dict[str, bool]:
    """For the loaders of transformers and sentence-transformers."""
    return {"trust_remote_code": True} if _given else {}
