"""`forebay.connect()`: the package's own door, with servers of its own and with others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import adbc_driver_manager
import pyarrow
import pytest
from conftest import ECHO, FOREBAY, MODES, ROOT, Server, add_user

import forebay
from forebay._asker import asker
from forebay._login import Login

# 4 rows take a millisecond: all of them would take hours.
ENDLESS = ("SELECT digest FROM ml_predict((SELECT value FROM range(0, 40000000)), MODEL echo, "
           "DESCRIPTOR(value))")
OPTIONS = ("--emulated-accelerators", "1", "--cpus", "2", "--max-queries-per-client", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def con(folder):
    with forebay.connect(catalog=folder / "catalog", server_options=OPTIONS) as con:
        con.execute(f"CREATE MODEL echo LOCATION '{ECHO}'").close()
        yield con


def until(condition, what: str):
    """Waits until something is so."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ticks(pid: int) -> int:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def rests(pid: int) -> bool:
    """Whether a process computes nothing for a while."""
    before = ticks(pid)
    time.sleep(1)
    return ticks(pid) - before < 20


def test_rows_come_as_arrow_pandas_polars_and_tuples(con):
    query = "SELECT * FROM (VALUES (1, 'red'), (2, NULL)) AS t (id, word) ORDER BY id"
    with con.cursor() as cursor:
        table = cursor.execute(query).fetch_arrow_table()
        assert table.to_pydict() == {"id": [1, 2], "word": ["red", None]}
        assert cursor.execute(query).fetch_df()["id"].tolist() == [1, 2]
        assert cursor.execute(query).fetch_polars()["id"].to_list() == [1, 2]
        assert cursor.execute(query).fetchall() == [(1, "red"), (2, None)]
        assert list(cursor.execute("SELECT ? + 1", (41,))) == [(42,)]


def test_a_model_and_a_file_are_read(con, folder):
    file = folder / "words.csv"
    file.write_text("id,word\n1,red\n2,green\n")
    with con.cursor() as cursor:
        cursor.execute(f"SELECT id, digest IS NOT NULL FROM ml_predict((SELECT id FROM '{file}'), "
                       "MODEL echo, DESCRIPTOR(id)) ORDER BY id")
        assert cursor.fetchall() == [(1, True), (2, True)]


def test_rows_of_this_process_become_a_table(con):
    with con.cursor() as cursor:
        assert cursor.adbc_ingest("numbers", pyarrow.table({"n": [1, 2, 3]})) == 3
        assert cursor.execute("SELECT sum(n) FROM numbers").fetchone() == (6,)


def test_closing_the_connection_ends_the_server(folder):
    con = forebay.connect(catalog=folder / "catalog")
    pid = con.server.pid
    assert runs(pid)
    con.close()
    assert not runs(pid)
    con.close()


def test_nobody_else_gets_in(con):
    for token in (None, "wrong"):
        with pytest.raises(adbc_driver_manager.Error, match=f"{con.server.uri}: .*(who you are|token is wrong)"):
            forebay.connect(con.server.uri, token=token)
    with forebay.connect(con.server.uri, token=con.server.token) as other:
        assert other.execute("SELECT 1").fetchone() == (1,)


STATEMENTS = [
    "SELEC 1",
    "SELECT * FROM wordz",
    "SELECT ml_predict(MODEL eco, 1)",
    "CREATE MODEL echo LOCATION '/nowhere'",
    "SELECT 1 / (value - 5) FROM range(0, 9)",
    "SELECT CAST('x' || value AS INT) FROM range(0, 9)",
    "SELECT * FROM '/nowhere/words.csv'",
    "SELECT 'a\nb' + 1",
    "DROP TABLE nothing",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_errors_are_the_shells(con, folder, statement):
    shell = [FOREBAY, "--catalog", str(folder / "catalog"), "shell", "--quiet", "-c", statement]
    said = subprocess.run(shell, capture_output=True, text=True)
    with pytest.raises(adbc_driver_manager.DatabaseError) as refused, con.cursor() as cursor:
        cursor.execute(statement).fetchall()
    assert said.stderr == f"error: {refused.value}\n"


def test_cancel_of_another_thread_is_an_error(con):
    with con.cursor() as cursor:
        cursor.execute(ENDLESS)
        assert cursor.fetchone() is not None
        threading.Timer(0.2, cursor.adbc_cancel).start()
        with pytest.raises(adbc_driver_manager.Error, match="(?i)cancel"):
            cursor.fetch_arrow_table()
    until(lambda: rests(con.server.pid), "the model stops")


INTERRUPTED = f"""
import os, signal, sys, threading
import forebay

con = forebay.connect(catalog=sys.argv[1], server_options={OPTIONS!r})
statement = sys.argv[2]
cursor = con.cursor()
threading.Timer(1.5, os.kill, (0, signal.SIGINT)).start()
try:
    cursor.execute(statement)
    cursor.fetch_arrow_table()
    print("ended")
except KeyboardInterrupt:
    print("interrupted")
# One query at a time: the first has ended on the server too.
print(con.execute("SELECT 1").fetchall(), con.server.pid, flush=True)
sys.stdin.read()
"""


def child(program: str, *arguments: str, **options) -> subprocess.Popen:
    """Another Python with the package, in a session of its own, as on a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-c", program, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipes, **options)


@pytest.mark.parametrize("statement", [ENDLESS, f"CREATE TABLE endless AS {ENDLESS}"])
def test_ctrl_c_ends_the_query_on_the_server_and_not_the_server(con, folder, statement):
    with child(INTERRUPTED, str(folder / "catalog"), statement) as process:
        assert process.stdout.readline() == "interrupted\n"
        row, pid = process.stdout.readline().rsplit(maxsplit=1)
        assert row == "[(1,)]"
        until(lambda: rests(int(pid)), "the model stops")
        process.stdin.close()
        assert process.wait(60) == 0
    until(lambda: not runs(int(pid)), "the server ends")


KILLED = """
import multiprocessing, sys, time
import forebay

con = forebay.connect(catalog=sys.argv[1])
# Whoever is forked does not keep the server.
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
forked.start()
print(con.server.pid, forked.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_parent_however_that_ends(folder, how):
    with child(KILLED, str(folder / "catalog")) as process:
        server, forked = map(int, process.stdout.readline().split())
        assert runs(server) and runs(forked)
        process.send_signal(how)
        process.wait(60)
        until(lambda: not runs(server), "the server ends")
        os.kill(forked, signal.SIGKILL)


def test_a_program_that_closes_nothing_leaves_nothing(folder):
    program = ("import sys, forebay; con = forebay.connect(catalog=sys.argv[1]); "
               "con.execute('SELECT 1'); print(con.server.pid)")
    with child(program, str(folder / "catalog"), stderr=subprocess.PIPE) as process:
        output, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    until(lambda: not runs(int(output)), "the server ends")


def test_a_server_that_cannot_start_says_why(folder):
    with pytest.raises(RuntimeError, match=r"ended before it was ready \(exit code 1\): error: .*nowhere"):
        forebay.connect(catalog=folder / "catalog", server_options=["--init", "/nowhere/init.sql"])


def test_the_owner_of_a_server_has_no_bounds(con):
    """What servers of many refuse: options, and values that are larger than a share of their memory."""
    with con.cursor() as cursor:
        cursor.execute("SET datafusion.execution.batch_size = 100000")
        cursor.execute("SHOW datafusion.execution.batch_size")
        assert cursor.fetchone()[1] == "100000"
        cursor.execute("RESET datafusion.execution.batch_size")
        cursor.execute("SELECT length(repeat('x', 300000000))")
        assert cursor.fetchone() == (300_000_000,)
        cursor.execute("RESET datafusion.runtime.memory_limit")


def test_private_needs_a_secret():
    command = [FOREBAY, "serve", "--embedded", "--private", "--flight-sql", "127.0.0.1:0"]
    environment = {**os.environ, "FOREBAY_TOKEN": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: --private needs FOREBAY_TOKEN: ")


@pytest.mark.parametrize("arguments, problem", [
    (("127.0.0.1:50050",), "'127.0.0.1:50050' is no server: expected grpc://HOST:PORT"),
    (("grpc://h:1", {"catalog": "x"}), "catalog is for a private server, and 'grpc://h:1'"),
    (("grpc://h:1", {"user": "a", "token": "b"}), "user and token: give one"),
    (("grpc://h:1", {"password": "b"}), "password: give its user"),
    (("grpc://h:1", {"tls_ca": "b"}), "tls_ca is for grpc\\+tls://"),
    (("grpc+tls://h:1", {"tls_key": "b"}), "tls_cert and tls_key: give both"),
    ((None, {"user": "a"}), "user is for a server"),
])
def test_arguments_that_do_not_fit_are_named(arguments, problem):
    uri, options = (*arguments, {})[:2]
    with pytest.raises(ValueError, match=problem):
        forebay.connect(uri, **options)


def test_where_nobody_answers_the_address_is_named():
    with pytest.raises(adbc_driver_manager.OperationalError, match="^grpc://127.0.0.1:1: .*refused"):
        forebay.connect("grpc://127.0.0.1:1")


def test_servers_with_users_tokens_and_certificates(folder, monkeypatch):
    add_user(folder / "users.toml", "ada", "lovelace", "admin")
    certificate = os.environ["FOREBAY_CERTIFICATE"], os.environ["FOREBAY_CERTIFICATE_KEY"]
    tls = ["--flight-tls-cert", certificate[0], "--flight-tls-key", certificate[1]]
    server = Server(folder / "tls", *MODES["embedded"], "--users", str(folder / "users.toml"), *tls)
    address = f"grpc+tls://{server.address}"
    authority = os.environ["FOREBAY_AUTHORITY"]
    try:
        with forebay.connect(address, user="ada", password="lovelace", tls_ca=authority) as con:
            assert con.server is None
            assert con.execute("SELECT count(*) FROM words").fetchone() == (3,)
        login = Login("ada", "lovelace", tls_ca=Path(authority).read_bytes())
        assert asker(address, login) is not None, "progress would not be shown"
        monkeypatch.setenv("FOREBAY_PASSWORD", "lovelace")
        with forebay.connect(address, user="ada", tls_ca=authority) as con:
            assert con.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(adbc_driver_manager.Error, match="user or the password is wrong"):
            forebay.connect(address, user="ada", password="byron", tls_ca=authority)
        with pytest.raises(adbc_driver_manager.Error, match="certificate"):
            forebay.connect(address, user="ada", password="lovelace")
    finally:
        server.stop()
