"""`forebay.connect()`: the door for Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._dbapi import Connection

SCHEMES = ("grpc://", "grpc+tls://")
TLS = "grpc+tls://"


def connect(
    uri: str | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    catalog: str | os.PathLike[str] | None = None,
    server_options: Sequence[str] = (),
    progress: bool = True,
) -> Connection:
    """Connects to a server, or starts one that belongs to this connection alone.

    >>> import forebay
    >>> with forebay.connect() as con:
    ...     con.execute("SELECT 1 AS n").fetch_arrow_table()

    Args:
        uri: A server, `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`. Without it a private server
            starts: a child process that ends with the connection, or with this process.
        user: Who to be for the server.
        password: The user's; `FOREBAY_PASSWORD` if it is not given.
        token: Instead of a user; `FOREBAY_TOKEN` if neither is given.
        tls_ca: File of the authority that the server must have its certificate from (PEM); the
            system's authorities if it is not given.
        tls_cert: File of the certificate to show to the server (PEM).
        tls_key: File of its key (PEM).
        catalog: Folder of a private server's model catalog; the shell's if it is not given.
        server_options: More options of `forebay serve` for a private server, such as
            `["--memory-limit", "4GB"]`.
        progress: Whether queries that take long show on a terminal, or in a notebook, how far they
            are.

    Raises:
        ImportError: The extra `client` is not installed.
        ValueError: The arguments do not fit together.
        RuntimeError: The private server cannot be started.
        adbc_driver_manager.Error: Nobody answers there, or the user is not believed.
    """
    try:
        from ._login import Login
        from ._open import open_connection
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "forebay"):
            raise
        raise ImportError(
            f"forebay.connect() needs the Python package {package}: pip install 'forebay[client]'"
        ) from error
    certificates = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    given = {"user": user, "password": password, "token": token, **certificates}
    _check(uri, given, {"catalog": catalog, "server_options": server_options or None})
    if uri is None:
        folder = os.fspath(catalog) if catalog is not None else None
        return open_connection(None, Login(), progress, folder, server_options)
    if user is not None and password is None:
        password = os.environ.get("FOREBAY_PASSWORD", "")
    if user is None and token is None:
        token = os.environ.get("FOREBAY_TOKEN") or None
    pem = {name: Path(file).read_bytes() for name, file in certificates.items() if file is not None}
    return open_connection(uri, Login(user, password, token, **pem), progress)


def _check(uri: str | None, of_client: dict[str, Any], of_server: dict[str, Any]) -> None:
    """Arguments that fit together, or a `ValueError` that says which do not."""
    named = [name for name, value in of_client.items() if value is not None]
    if uri is None:
        if named:
            raise ValueError(f"{named[0]} is for a server: give its address, grpc://HOST:PORT, too")
        return
    if not uri.startswith(SCHEMES):
        raise ValueError(f"'{uri}' is no server: expected grpc://HOST:PORT or grpc+tls://HOST:PORT")
    for name, value in of_server.items():
        if value is not None:
            raise ValueError(f"{name} is for a private server, and '{uri}' is another one")
    if "user" in named and "token" in named:
        raise ValueError("user and token: give one of them")
    if "password" in named and "user" not in named:
        raise ValueError("password: give its user too")
    if ("tls_cert" in named) != ("tls_key" in named):
        raise ValueError("tls_cert and tls_key: give both or none")
    if not uri.startswith(TLS) and (tls := [name for name in named if name.startswith("tls_")]):
        raise ValueError(f"{tls[0]} is for grpc+tls://, and '{uri}' is not encrypted")
