"""Users and passwords, as the clients send them: Go's without padding, others with it."""

from __future__ import annotations

import warnings

import adbc_driver_flightsql.dbapi as flightsql
import adbc_driver_manager
import pyarrow.flight as flight
import pytest
from conftest import MODES, Server, add_user

LENGTHS = range(1, 13)

CREDENTIALS = {
    # As long as each other, so that the lengths of what is encoded leave each remainder.
    **{"abcdefghijkl"[:length]: "+/?~ 0Az|:}{"[-length:] for length in LENGTHS},
    "u7": "p" * 7,
    "u8": "p" * 8,
    "u9": "p" * 9,
    "ädä": "lövelace",
    "😀": "路🔑",
    "colons": ":a::b:",
    "with space": " \"leading\" and trailing\\ ",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logins")
    for name, password in CREDENTIALS.items():
        add_user(folder / "users.toml", name, password)
    server = Server(folder, *MODES["embedded"], "--users", str(folder / "users.toml"))
    yield server
    server.stop()


def adbc(server, name, password):
    who = {"username": name, "password": password}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with flightsql.connect(server.uri, db_kwargs=who) as connection:
            with connection.cursor() as cursor:
                return cursor.execute("SELECT 1").fetchall()


def plain(server, name, password):
    with flight.connect(server.uri) as client:
        header = client.authenticate_basic_token(name, password)
        options = flight.FlightCallOptions(headers=[header])
        info = client.get_flight_info(flight.FlightDescriptor.for_path("sql", "SELECT 1"), options)
        return client.do_get(info.endpoints[0].ticket, options).read_all()


@pytest.mark.parametrize("login", [adbc, plain])
def test_every_name_and_password_gets_in(guarded, login):
    refused = []
    for name, password in CREDENTIALS.items():
        try:
            login(guarded, name, password)
        except (adbc_driver_manager.Error, flight.FlightError) as error:
            refused.append((name, password, str(error)))
    assert refused == []


@pytest.mark.parametrize("login", [adbc, plain])
@pytest.mark.parametrize("name, password", [
    ("colons", ":a::b"), ("u8", "p" * 7), ("u8", "p" * 9), ("nobody", "x"),
])
def test_others_do_not(guarded, login, name, password):
    expected = (adbc_driver_manager.Error, flight.FlightUnauthenticatedError)
    with pytest.raises(expected, match="password is wrong"):
        login(guarded, name, password)


@pytest.mark.parametrize("encoded", ["dTg6cHBwcHBwcHA", "dTg6cHBwcHBwcHA="])
def test_padding_may_be_whole_or_not_there(guarded, encoded):
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Basic {encoded}".encode())])
    with flight.connect(guarded.uri) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("sql", "SELECT 1"), options)
        assert client.do_get(info.endpoints[0].ticket, options).read_all().num_rows == 1
