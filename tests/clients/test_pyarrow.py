"""Plain pyarrow, which knows Flight and no Flight SQL."""

from __future__ import annotations

import subprocess

import numpy
import pyarrow
import pyarrow.flight as flight
import pytest
from conftest import FOREBAY, Server


def read(client, statement, options=None):
    descriptor = flight.FlightDescriptor.for_path("sql", statement)
    info = client.get_flight_info(descriptor, options=options)
    return client.do_get(info.endpoints[0].ticket, options=options).read_all()


def test_a_path_stands_for_a_statement(server):
    with flight.connect(server.uri) as client:
        table = read(client, "SELECT id FROM words ORDER BY id")
        assert table["id"].to_pylist() == [1, 2, 3]
        descriptor = flight.FlightDescriptor.for_path("sql", "SELECT word FROM words")
        assert client.get_schema(descriptor).schema.names == ["word"]
        with pytest.raises(pyarrow.ArrowKeyError, match="expected a Flight SQL command"):
            client.get_flight_info(flight.FlightDescriptor.for_path("nothing"))


def test_vectors_become_numpy_without_a_copy(server):
    with flight.connect(server.uri) as client:
        table = read(client, "SELECT arrow_cast([id, id + 1, 0.5], 'FixedSizeList(3, Float32)') AS v "
                             "FROM words ORDER BY id")
        assert table.schema.field("v").type == pyarrow.list_(pyarrow.float32(), 3)
        column = table["v"].chunk(0)
        vectors = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, 3)
        assert vectors.dtype == numpy.float32
        assert vectors.tolist() == [[1, 2, 0.5], [2, 3, 0.5], [3, 4, 0.5]]


def test_actions_are_listed(server):
    with flight.connect(server.uri) as client:
        assert "CloseSession" in [action.type for action in client.list_actions()]


def test_tickets_are_refused_that_are_forged_or_whose_session_has_ended(server):
    with flight.connect(server.uri) as client:
        descriptor = flight.FlightDescriptor.for_path("sql", "SELECT 1")
        good = client.get_flight_info(descriptor).endpoints[0].ticket.ticket
        # What is signed, and the signature.
        for at in range(len(good) - 64, len(good)):
            forged = bytearray(good)
            forged[at] ^= 1
            with pytest.raises((flight.FlightError, pyarrow.ArrowException)):
                client.do_get(flight.Ticket(bytes(forged))).read_all()
        for damaged in (b"", b"x", good[:-1], good[1:]):
            with pytest.raises((flight.FlightError, pyarrow.ArrowException)):
                client.do_get(flight.Ticket(damaged)).read_all()
        assert client.do_get(flight.Ticket(good)).read_all().num_rows == 1
        with pytest.raises(pyarrow.ArrowKeyError, match="good no more"):
            client.do_get(flight.Ticket(good)).read_all()
        good = client.get_flight_info(descriptor).endpoints[0].ticket.ticket
        list(client.do_action(flight.Action("CloseSession", b"")))
        with pytest.raises(pyarrow.ArrowKeyError, match="session of this ticket has ended"):
            client.do_get(flight.Ticket(good)).read_all()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that asks who calls, and lets clients name files in one folder."""
    folder = tmp_path_factory.mktemp("guarded")
    users = folder / "users.toml"
    for name, role in (("ada", "admin"), ("will", "write"), ("rita", "read")):
        command = [FOREBAY, "user", "add", name, "--role", role, "--users", str(users)]
        subprocess.run(command, input=f"secret of {name}\n", text=True, check=True)
    command = [FOREBAY, "user", "token", "dashboard", "--users", str(users)]
    token = subprocess.run(command, text=True, check=True, capture_output=True).stdout.strip()
    (folder / "data").mkdir()
    arguments = ["--embedded", "--users", str(users), "--root", str(folder / "data")]
    server = Server(folder, *arguments, "--root", str(folder / "models"))
    server.token, server.folder = token, folder
    yield server
    server.stop()


def as_user(client, name):
    header = client.authenticate_basic_token(name, f"secret of {name}")
    return flight.FlightCallOptions(headers=[header])


def test_strangers_are_refused(guarded):
    with flight.connect(guarded.uri) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="who you are"):
            read(client, "SELECT 1")
        with pytest.raises(flight.FlightUnauthenticatedError, match="password is wrong"):
            client.authenticate_basic_token("ada", "byron")
        for header in (b"Bearer x", b"Bearer", b"Basic ???", b"Negotiate x", b"\xff"):
            options = flight.FlightCallOptions(headers=[(b"authorization", header)])
            with pytest.raises(flight.FlightError):
                read(client, "SELECT 1", options)


def test_tokens_and_passwords_are_believed(guarded):
    with flight.connect(guarded.uri) as client:
        assert read(client, "SELECT 1", as_user(client, "rita")).num_rows == 1
        bearer = (b"authorization", f"Bearer {guarded.token}".encode())
        assert read(client, "SELECT 1", flight.FlightCallOptions(headers=[bearer])).num_rows == 1


def test_one_client_cannot_read_with_the_ticket_of_another(guarded):
    with flight.connect(guarded.uri) as client:
        rita, ada = as_user(client, "rita"), as_user(client, "ada")
        descriptor = flight.FlightDescriptor.for_path("sql", "SELECT 1")
        ticket = client.get_flight_info(descriptor, options=ada).endpoints[0].ticket
        with pytest.raises(pyarrow.ArrowKeyError, match="ended"):
            client.do_get(ticket, options=rita).read_all()


def test_roles_say_what_may_be_done(guarded):
    with flight.connect(guarded.uri) as client:
        rita, will, ada = (as_user(client, name) for name in ("rita", "will", "ada"))
        data = guarded.folder / "data"
        changes = [
            "CREATE TABLE t AS SELECT 1 AS a",
            "INSERT INTO words VALUES (4, 'blue')",
            f"COPY words TO '{data}/words.parquet'",
            f"CREATE EXTERNAL TABLE files STORED AS PARQUET LOCATION '{data}/words.parquet'",
            "DROP TABLE t",
        ]
        for statement in changes:
            with pytest.raises(flight.FlightError, match="needs the role write; 'rita' has read"):
                read(client, statement, rita)
        for statement in changes:
            read(client, statement, will)
        models = ["DROP MODEL echo", "ALTER MODEL echo SET ('max_batch_rows' = '2')",
                  "CREATE MODEL m LOCATION '/tmp'"]
        for statement in models:
            with pytest.raises(flight.FlightError, match="needs the role admin"):
                read(client, statement, will)
        assert read(client, "SELECT count(*) AS n FROM files", rita)["n"].to_pylist() == [4]
        assert read(client, "SHOW MODELS", rita).num_rows == 2
        read(client, "ALTER MODEL echo SET ('max_batch_rows' = '2')", ada)


def test_files_outside_of_the_roots_cannot_be_named(guarded):
    with flight.connect(guarded.uri) as client:
        ada = as_user(client, "ada")
        outside = [
            "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
            f"CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{guarded.folder}/data/../users.toml'",
            f"COPY words TO '{guarded.folder}/out.parquet'",
            "CREATE MODEL m LOCATION '/etc'",
            "CREATE MODEL m LOCATION 'http://169.254.169.254/latest'",
            f"EXPLAIN COPY words TO '{guarded.folder}/out.parquet'",
            "SELECT * FROM read_files('/etc/*')",
            f"SELECT * FROM read_files('{guarded.folder}/data/../users.toml')",
        ]
        for statement in outside:
            with pytest.raises(flight.FlightError, match="outside of the folders"):
                read(client, statement, ada)
        for statement in ["SELECT * FROM '/etc/passwd'", "SELECT * FROM '/etc/hosts.csv'"]:
            with pytest.raises(pyarrow.ArrowInvalid, match="not found"):
                read(client, statement, ada)
        with pytest.raises(pyarrow.ArrowInvalid, match="url_download"):
            read(client, "SELECT url_download('file:///etc/passwd')", ada)
        (guarded.folder / "data/file.txt").write_text("content")
        inside = f"SELECT bytes FROM read_files('{guarded.folder}/data/*.txt')"
        assert read(client, inside, ada)["bytes"].to_pylist() == [b"content"]
        # Tables are all that a reader sees.
        with pytest.raises(pyarrow.ArrowInvalid, match="read_files"):
            read(client, inside, as_user(client, "rita"))
        with pytest.raises(pyarrow.ArrowInvalid, match="not an option that clients"):
            read(client, "SET datafusion.runtime.temp_directory = '/etc'", ada)
