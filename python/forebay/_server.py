"""A server of one's own: a child process, for this process alone, that ends with it."""

from __future__ import annotations

import collections
import os
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence

from . import _binary

READY = "Arrow Flight SQL on "
# A notebook may be left alone for long; what was SET in it stays.
SESSION_SECONDS = 10 * 365 * 24 * 60 * 60
STOP_SECONDS = 10


class PrivateServer:
    """`forebay serve --embedded --private`, until `stop`, or until this process ends in any way."""

    def __init__(self, catalog: str | None = None, options: Sequence[str] = ()) -> None:
        self.token = secrets.token_hex(32)
        command = [os.fspath(_binary.path()), *(("--catalog", catalog) if catalog else ())]
        command += ["serve", "--embedded", "--private", "--flight-sql", "127.0.0.1:0"]
        command += ["--session-timeout", str(SESSION_SECONDS), *options]
        try:
            # A session of its own: Ctrl-C is for the query, not for the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_binary.environment(), "FOREBAY_TOKEN": self.token},
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise _binary.problem(error) from error
        _RUNNING.add(self)
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        self._log = threading.Thread(target=self._forward, daemon=True)
        self._log.start()
        try:
            self.uri = f"grpc://{self._address()}"
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def stop(self) -> None:
        """Ends the server, and whatever it runs."""
        self._let_go()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _RUNNING.discard(self)

    def _address(self) -> str:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(READY):
                    return line.removeprefix(READY).strip()
        code = self._process.wait()
        self._log.join(1)
        said = "".join(self._said).strip() or "it said nothing"
        raise RuntimeError(f"the server ended before it was ready (exit code {code}): {said}")

    def _forward(self) -> None:
        """What the server says on standard error is said here too, once it is ready."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line)
                if hasattr(self, "uri"):
                    print(line, end="", file=sys.stderr)

    def _let_go(self) -> None:
        """Ends the server's standard input, and by that the server, unless another process has it."""
        assert self._process.stdin is not None
        self._process.stdin.close()


_RUNNING: weakref.WeakSet[PrivateServer] = weakref.WeakSet()


def _forget_all() -> None:
    for server in list(_RUNNING):
        server._let_go()


# A forked child would keep the servers of its parent alive.
os.register_at_fork(after_in_child=_forget_all)
