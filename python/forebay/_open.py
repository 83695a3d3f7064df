"""Opens connections of ADBC's driver for Flight SQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import adbc_driver_flightsql
import adbc_driver_manager
from adbc_driver_flightsql import DatabaseOptions

from . import _errors
from ._asker import asker
from ._dbapi import Connection
from ._login import Login
from ._progress import Display, Progress, display_here
from ._server import PrivateServer

# Rows of long vectors are long messages; the server bounds them.
MESSAGE_BYTES_MAX = 2**31 - 1
COOKIE = DatabaseOptions.RPC_CALL_HEADER_PREFIX.value + "cookie"


def open_connection(
    uri: str | None,
    login: Login,
    shows_progress: bool,
    catalog: str | None = None,
    server_options: Sequence[str] = (),
) -> Connection:
    """A connection to a server, or to one of its own if there is no address."""
    server = None
    if uri is None:
        server = PrivateServer(catalog, server_options)
        uri, login = server.uri, Login(token=server.token)
    try:
        return _opened(uri, login, display_here() if shows_progress else None, server)
    except BaseException:
        if server is not None:
            server.stop()
        raise


def _opened(
    uri: str, login: Login, display: Callable[[], Display] | None, server: PrivateServer | None
) -> Connection:
    options = login.for_adbc()
    options[DatabaseOptions.WITH_MAX_MSG_SIZE.value] = str(MESSAGE_BYTES_MAX)
    progress = None
    if display is not None and (found := asker(uri, login)):
        options[COOKIE] = str(found.cookie.value)
        progress = Progress(display, found.done)
    else:
        options[DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value] = "true"
    with contextlib.ExitStack() as undo:
        try:
            database = adbc_driver_flightsql.connect(uri, options)
            undo.callback(database.close)
            connection = adbc_driver_manager.AdbcConnection(database)
            opened = Connection(database, connection, progress, server)
            undo.pop_all()
            undo.callback(opened.close)
            # The driver itself asks nobody before the first statement.
            opened.adbc_get_table_types()
        except adbc_driver_manager.Error as error:
            _errors.unwrap(error)
            error.args = (f"{uri}: {error}",)
            raise
        undo.pop_all()
        return opened
