"""Connections and cursors of Python's DBAPI, as ADBC has them, with progress, Ctrl-C and plain errors."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import adbc_driver_manager
from adbc_driver_manager import dbapi

from . import _errors
from ._progress import Progress
from ._server import PrivateServer

Method = TypeVar("Method", bound=Callable[..., Any])


def _watched(method: Method, *, shows: bool = True) -> Method:
    """The inherited method, which waits for the server: its progress is shown, its errors are plain."""

    @functools.wraps(method)
    def call(self: Cursor, *args: Any, **kwargs: Any) -> Any:
        with self._watch(shows):
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class Cursor(dbapi.Cursor):
    """Runs statements and gives their rows: as Arrow, pandas, polars or tuples.

    Errors are those of ADBC's DBAPI; their text is what the shell prints. Ctrl-C, and a notebook's
    interrupt, end the query on the server too, and are a `KeyboardInterrupt` here.
    """

    def __init__(self, connection: Connection, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, options)
        self._progress = connection._progress
        self._is_watched = False
        self._is_told_to_cancel = False

    def execute(self, operation: bytes | str, parameters: Any = None) -> Cursor:
        """Runs a statement; `parameters` are bound to `?`, `$1` or `$name`. Gives this cursor."""
        with self._watch():
            super().execute(operation, parameters)
        return self

    executemany = _watched(dbapi.Cursor.executemany)
    executescript = _watched(dbapi.Cursor.executescript)
    fetchall = _watched(dbapi.Cursor.fetchall)
    fetch_arrow_table = _watched(dbapi.Cursor.fetch_arrow_table)
    fetch_df = _watched(dbapi.Cursor.fetch_df)
    fetch_polars = _watched(dbapi.Cursor.fetch_polars)
    # A thread for the progress of each row would cost more than the row.
    fetchone = _watched(dbapi.Cursor.fetchone, shows=False)
    fetchmany = _watched(dbapi.Cursor.fetchmany, shows=False)
    adbc_execute_schema = _watched(dbapi.Cursor.adbc_execute_schema, shows=False)
    adbc_ingest = _watched(dbapi.Cursor.adbc_ingest)
    adbc_prepare = _watched(dbapi.Cursor.adbc_prepare, shows=False)

    def adbc_cancel(self) -> None:
        """Ends what this cursor is doing; called by another thread."""
        self._is_told_to_cancel = True
        super().adbc_cancel()

    @contextlib.contextmanager
    def _watch(self, shows: bool = True) -> Iterator[None]:
        if self._is_watched:
            yield
            return
        self._is_watched, self._is_told_to_cancel = True, False
        try:
            with self._progress.of_call() if shows and self._progress else contextlib.nullcontext():
                yield
        except KeyboardInterrupt:
            super().adbc_cancel()
            raise
        except adbc_driver_manager.Error as error:
            if _errors.is_taken_back(error) and not self._is_told_to_cancel:
                # ADBC's handler of SIGINT has canceled the call.
                raise KeyboardInterrupt("the query was canceled") from None
            _errors.unwrap(error)
            raise
        finally:
            self._is_watched = False


class Connection(dbapi.Connection):
    """A session on a server. Closing it ends the session, and a server that is its own."""

    def __init__(
        self,
        database: adbc_driver_manager.AdbcDatabase,
        connection: adbc_driver_manager.AdbcConnection,
        progress: Progress | None,
        server: PrivateServer | None,
    ) -> None:
        # Statements count at once: there are no transactions.
        super().__init__(database, connection, autocommit=True)
        self._progress = progress
        self._server = server
        self._own_cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        _OPEN.add(self)

    @property
    def server(self) -> PrivateServer | None:
        """The server that `forebay.connect()` started for this connection, if it did."""
        return self._server

    def cursor(self, *, adbc_stmt_kwargs: Mapping[str, Any] | None = None) -> Cursor:
        """A new cursor; ADBC's options for statements may be given."""
        cursor = Cursor(self, adbc_stmt_kwargs)
        self._own_cursors.add(cursor)
        return cursor

    def execute(
        self,
        operation: bytes | str,
        parameters: Any = None,
        *,
        adbc_stmt_kwargs: Mapping[str, Any] | None = None,
    ) -> Cursor:
        """Runs a statement on a new cursor, and gives that."""
        return self.cursor(adbc_stmt_kwargs=adbc_stmt_kwargs).execute(operation, parameters)

    def close(self) -> None:
        """Ends queries that run, the session, and the server if it is this connection's own."""
        try:
            for cursor in list(self._own_cursors):
                cursor.close()
            super().close()
        finally:
            _OPEN.discard(self)
            if self._server is not None:
                self._server.stop()


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_all() -> None:
    for connection in list(_OPEN):
        with contextlib.suppress(adbc_driver_manager.Error, RuntimeError):
            connection.close()


# Later, when Python takes everything apart, connections may go before their cursors.
atexit.register(_close_all)
# What is open is the parent's.
os.register_at_fork(after_in_child=_OPEN.clear)
