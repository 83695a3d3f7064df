"""Errors as the shell says them, without what the driver wraps around the server's words."""

from __future__ import annotations

import re

from adbc_driver_manager import AdbcStatusCode, Error

# For example `INVALID_ARGUMENT: [FlightSQL] no table 'x' (InvalidArgument; Prepare)`.
_WRAPPED = re.compile(r"(?:[A-Z_]+: )?\[FlightSQL\] (?P<text>.*) \(\w+; .*\)", re.DOTALL)
# What gRPC says of a call that this side took back.
_TAKEN_BACK = "context canceled"


def unwrap(error: Error) -> None:
    """Leaves the server's words alone in an error."""
    error.args = (message(error),)


def message(error: Error) -> str:
    """The server's words."""
    wrapped = _WRAPPED.match(str(error))
    return wrapped["text"] if wrapped else str(error)


def is_taken_back(error: Error) -> bool:
    """Whether the call was canceled by this process."""
    return error.status_code is AdbcStatusCode.CANCELLED and _TAKEN_BACK in str(error)
