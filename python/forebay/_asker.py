"""Asks the server how far a session's query is, beside ADBC's driver, which cannot."""

from __future__ import annotations

from typing import Any

import pyarrow
from pyarrow import flight

from ._login import Login

# The server's action, and for how long its answer is waited for.
PROGRESS = "forebay.progress"
ANSWER_SECONDS = 2.0
# Of pyarrow's client.
FAILURES = (flight.FlightError, pyarrow.ArrowException, OSError)


class SessionCookie(flight.ClientMiddlewareFactory):
    """Keeps the cookie by which the server knows a session, for ADBC's driver to send it too."""

    value: str | None = None

    def start_call(self, info: Any) -> flight.ClientMiddleware:
        """Called before each call."""
        return _Headers(self)


class _Headers(flight.ClientMiddleware):
    def __init__(self, cookie: SessionCookie) -> None:
        super().__init__()
        self._cookie = cookie

    def sending_headers(self) -> dict[str, str]:
        return {"cookie": self._cookie.value} if self._cookie.value else {}

    def received_headers(self, headers: dict[str, list[str]]) -> None:
        for header in headers.get("set-cookie", []):
            self._cookie.value = header.partition(";")[0]


class Asker:
    """A client of pyarrow's, in the session that ADBC's driver is then told to be in."""

    def __init__(self, uri: str, login: Login) -> None:
        """Begins the session."""
        self.cookie = SessionCookie()
        self._client = flight.FlightClient(uri, middleware=[self.cookie], **login.for_pyarrow())
        headers = login.headers(self._client)
        self._options = flight.FlightCallOptions(timeout=ANSWER_SECONDS, headers=headers)
        self.done()

    def done(self) -> float | None:
        """How much is done, from 0 to 1, if the server knows."""
        try:
            answers = self._client.do_action(flight.Action(PROGRESS, b""), self._options)
            text = b"".join(answer.body.to_pybytes() for answer in answers)
            return float(text) if text else None
        except (*FAILURES, ValueError):
            return None


def asker(uri: str, login: Login) -> Asker | None:
    """None if the server gives no session: why, ADBC will say, or its queries go without progress."""
    try:
        found = Asker(uri, login)
    except FAILURES:
        return None
    return found if found.cookie.value else None
