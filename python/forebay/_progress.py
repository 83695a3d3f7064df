"""How far a query is, on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

# As in the shell.
SHOWN_AFTER_SECONDS = 0.5
ASKED_EVERY_SECONDS = 0.5
WIDTH = 30


class Display(Protocol):
    """Where a line is shown, again and again."""

    def show(self, line: str) -> None: ...

    def end(self, line: str) -> None: ...


class Terminal:
    """A line that is written over, and taken away at the end."""

    def show(self, line: str) -> None:
        """Replaces the line."""
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)

    def end(self, line: str) -> None:
        """Leaves the terminal as it was."""
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


class Notebook:
    """An output of the cell, which stays."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str) -> None:
        """Makes the output, or changes it."""
        content = {"text/plain": line}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def end(self, line: str) -> None:
        """Says how it ended."""
        self.show(line)


def display_here() -> Callable[[], Display] | None:
    """What this process can show progress on, if anything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return Notebook
    return Terminal if sys.stderr is not None and sys.stderr.isatty() else None


class Progress:
    """Shows how far a session's query is. What fails here is no concern of the query."""

    def __init__(self, display: Callable[[], Display], done: Callable[[], float | None]) -> None:
        """`done` asks the server."""
        self._display = display
        self._done = done

    @contextlib.contextmanager
    def of_call(self) -> Iterator[None]:
        """Shows the progress of what is done meanwhile, if that takes long."""
        ended = threading.Event()
        # In a notebook the context says which cell an output belongs to.
        show = contextvars.copy_context().run
        thread = threading.Thread(target=show, args=(self._show, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _show(self, ended: threading.Event) -> None:
        began = time.monotonic()
        if ended.wait(SHOWN_AFTER_SECONDS):
            return
        display = self._display()
        while True:
            display.show(line(self._done(), time.monotonic() - began))
            if ended.wait(ASKED_EVERY_SECONDS):
                break
        display.end(f"{time.monotonic() - began:.1f} s")


def line(done: float | None, elapsed: float) -> str:
    """`[######                        ] 20% 12 s`, or the time alone if nobody knows how much is done."""
    if done is None:
        return f"{elapsed:.0f} s"
    filled = round(WIDTH * done)
    return f"[{'#' * filled}{' ' * (WIDTH - filled)}] {done:.0%} {elapsed:.0f} s"
