"""Jobs that write to an S3 server go on when the process of their server was killed. What they read is written, and
what they wrote is read, with another client of S3."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import FOREBAY, ROOT, Server

pytest.importorskip("moto", reason="there is no S3 server here: run tools/setup clients")
import adbc_driver_flightsql.dbapi as flightsql  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
from test_stores import Store  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")

EMBEDDED = ["--embedded"]
CLUSTER = ["--worker", "--bind", "127.0.0.1:0"]

FILES = 8
ROWS_OF_FILE = 24
ROWS = FILES * ROWS_OF_FILE

MODEL = "ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))"

# What is written, and where: the target, its query, and the rows that it is to have.
TARGETS = {
    "folder": ("out/", f"SELECT n, digest FROM {MODEL}", ROWS),
    "file": ("out/all.parquet", f"SELECT n, digest FROM {MODEL}", ROWS),
    "groups": ("out/", f"SELECT n % 48 AS n, sum(digest) AS digest FROM {MODEL} GROUP BY 1", 48),
}


@pytest.fixture(scope="module")
def store():
    store = Store()
    yield store
    store.stop()


def rows(cursor, statement: str) -> list[tuple]:
    cursor.execute(statement)
    return cursor.fetchall()


@contextmanager
def session(server: Server):
    with flightsql.connect(server.uri) as connection, connection.cursor() as cursor:
        yield cursor


class Job:
    """A bucket of files to read, and servers one after the other that share a folder of their state."""

    def __init__(self, store: Store, folder: Path, name: str) -> None:
        self.store, self.folder, self.bucket = store, folder, f"resume-{name}"
        store.bucket(self.bucket)
        for file in range(FILES):
            numbers = range(file * ROWS_OF_FILE, (file + 1) * ROWS_OF_FILE)
            text = "n\n" + "".join(f"{number}\n" for number in numbers)
            store.put(self.bucket, f"in/{file}.csv", text.encode())
        package = folder / "slow"
        package.mkdir()
        echo = (ROOT / "tests/models/echo/model.toml").read_text()
        (package / "model.toml").write_text(echo.replace("service_ms = 1", "service_ms = 100"))

    def serve(self, *mode: str) -> Server:
        first = f"""CREATE OR REPLACE MODEL slow LOCATION '{self.folder}/slow';
                    CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 's3://{self.bucket}/in/'
                    OPTIONS ('format.has_header' 'true');"""
        state = ["--state", str(self.folder / "state")]
        return Server(
            self.folder, *mode, *state, environment=self.store.environment(), first=first
        )

    def keys(self) -> list[str]:
        found = self.store.s3.list_objects_v2(Bucket=self.bucket, Prefix="out/")
        return [each["Key"] for each in found.get("Contents", [])]

    def parts(self) -> int:
        return sum("/_forebay-" in key and "/parts/" in key for key in self.keys())

    def visible(self) -> list[str]:
        return [key for key in self.keys() if "/_forebay-" not in key]

    def clean(self) -> str:
        """What `forebay gc` says of all that it may end."""
        command = [FOREBAY, "gc", f"s3://{self.bucket}/", "--older-than", "0"]
        done = subprocess.run(
            command, env=self.store.environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until_complete(self, cursor, job: str, parts: int) -> None:
        while self.parts() < parts:
            [(state,)] = rows(cursor, f"SELECT state FROM forebay.jobs WHERE job_id = '{job}'")
            assert state in ("queued", "running"), state
            time.sleep(0.02)

    def killed_half_way(self, mode: list[str], to: str, query: str) -> str:
        """The id of a job whose server was killed when half of its parts were there."""
        server = self.serve(*mode)
        with session(server) as cursor:
            for option in ["resumable = true", "stage_models = true", "part_bytes = 1"]:
                cursor.execute(f"SET forebay.{option}")
            copy = f"COPY ({query}) TO 's3://{self.bucket}/{to}' STORED AS PARQUET"
            [(name,)] = rows(cursor, f"SUBMIT {copy}")
            self.until_complete(cursor, name, FILES // 2)
        server.process.kill()
        server.process.wait()
        return name


@pytest.mark.parametrize("kind", TARGETS)
def test_a_job_goes_on_in_another_server(store, tmp_path, kind):
    to, query, expected = TARGETS[kind]
    job = Job(store, tmp_path, kind)
    name = job.killed_half_way(EMBEDDED, to, query)
    assert job.visible() == []
    # Another one may go on with it, for a week.
    assert "resumable" in job.clean()
    staged = job.parts()
    assert FILES // 2 <= staged < FILES

    server = job.serve(*CLUSTER)
    with session(server) as cursor:
        kept = rows(cursor, f"EXPLAIN RESUME JOB '{name}'")[0]
        assert kept[:2] == ("kept", staged) and kept[3] == staged * ROWS_OF_FILE
        assert rows(cursor, f"RESUME JOB '{name}'") == [(name,)]
        assert "resumable" in job.clean()
        [(_, state, written, _)] = rows(cursor, f"WAIT FOR JOB '{name}'")
        assert (state, written) == ("finished", expected)
        computed = "SELECT sum(rows) FROM forebay.stages WHERE name LIKE '%Inference(slow)%'"
        assert rows(cursor, computed) == [(ROWS - kept[3],)]
    server.stop()

    assert not any("_forebay-" in key for key in job.keys())
    table = ds.dataset(
        [f"{job.bucket}/{key}" for key in job.visible() if not key.endswith("_SUCCESS")],
        filesystem=store.files,
        format="parquet",
    ).to_table()
    assert sorted(table["n"].to_pylist()) == list(range(expected))
    assert len(set(table["digest"].to_pylist())) == expected
    assert (kind == "file") == (job.visible() == ["out/all.parquet"])


def test_parts_of_a_server_that_was_killed_are_not_in_the_way(store, tmp_path):
    """Their rows would come to a session that is gone."""
    to, query, expected = TARGETS["folder"]
    job = Job(store, tmp_path, "not-in-the-way")
    name = job.killed_half_way(CLUSTER, to, query)
    server = job.serve(*CLUSTER)
    with session(server) as cursor:
        others = f"SELECT name FROM forebay.jobs WHERE job_id <> '{name}'"
        assert rows(cursor, others) == []
        assert rows(cursor, f"RESUME JOB '{name}'") == [(name,)]
        [(_, state, written, _)] = rows(cursor, f"WAIT FOR JOB '{name}'")
        assert (state, written) == ("finished", expected)
    server.stop()


def test_an_input_that_is_written_again_is_noticed(store, tmp_path):
    """Though it is as long, and S3 tells times in seconds."""
    job = Job(store, tmp_path, "again")
    server = job.serve(*EMBEDDED)
    with session(server) as cursor:
        for option in ["resumable = true", "part_bytes = 1"]:
            cursor.execute(f"SET forebay.{option}")
        copy = f"COPY (SELECT n, digest FROM {MODEL}) TO 's3://{job.bucket}/out/' STORED AS PARQUET"
        [(name,)] = rows(cursor, f"SUBMIT {copy}")
        job.until_complete(cursor, name, FILES // 2)
        rows(cursor, f"CANCEL JOB '{name}'")
        kept = rows(cursor, f"EXPLAIN RESUME JOB '{name}'")[0][1]
        numbers = "".join(f"{number}\n" for number in range(ROWS_OF_FILE))
        again = "n\n" + numbers.replace("23\n", "99\n")
        store.put(job.bucket, "in/0.csv", again.encode())
        with pytest.raises(Exception, match=r"in/0\.csv' has changed"):
            rows(cursor, f"RESUME JOB '{name}'")
        assert rows(cursor, f"EXPLAIN RESUME JOB '{name}' ANEW")[0][1] == kept - 1
        rows(cursor, f"RESUME JOB '{name}' ANEW")
        [(_, state, written, _)] = rows(cursor, f"WAIT FOR JOB '{name}'")
        assert (state, written) == ("finished", ROWS)
    server.stop()
    table = ds.dataset(f"{job.bucket}/out/", filesystem=store.files, format="parquet").to_table()
    numbers = sorted(table["n"].to_pylist())
    assert numbers == sorted([*range(23), 99, *range(24, ROWS)])
