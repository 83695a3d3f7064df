"""Who to be for a server, and whom to believe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbc_driver_flightsql import DatabaseOptions
from pyarrow import flight


@dataclass(frozen=True)
class Login:
    """A user or a token or nobody; certificates and keys are PEM."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None

    def for_adbc(self) -> dict[str, str]:
        """Options of ADBC's driver."""
        options = {}
        for option, value in (
            (DatabaseOptions.TLS_ROOT_CERTS, self.tls_ca),
            (DatabaseOptions.MTLS_CERT_CHAIN, self.tls_cert),
            (DatabaseOptions.MTLS_PRIVATE_KEY, self.tls_key),
        ):
            if value is not None:
                options[option.value] = value.decode()
        if self.user is not None:
            options |= {"username": self.user, "password": self.password or ""}
        if self.token is not None:
            options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {self.token}"
        return options

    def for_pyarrow(self) -> dict[str, Any]:
        """Options of pyarrow's client."""
        tls = {"tls_root_certs": self.tls_ca, "cert_chain": self.tls_cert, "private_key": self.tls_key}
        return {name: value for name, value in tls.items() if value is not None}

    def headers(self, client: flight.FlightClient) -> list[tuple[bytes, bytes]]:
        """What calls of pyarrow's client have to carry; logs in for that."""
        if self.user is not None:
            return [client.authenticate_basic_token(self.user, self.password or "")]
        if self.token is not None:
            return [(b"authorization", f"Bearer {self.token}".encode())]
        return []
