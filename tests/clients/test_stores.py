"""Files and models in an S3 server, through every door. What is there is written and read with other
clients of S3."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
from conftest import ECHO, FOREBAY, ROOT, Server, shell

pytest.importorskip("moto", reason="there is no S3 server here: run tools/setup clients")
import boto3  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import requests  # noqa: E402
from moto.core import DEFAULT_ACCOUNT_ID  # noqa: E402
from moto.s3.models import s3_backends  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402
from pyarrow import fs  # noqa: E402

REGION = "eu-central-1"
MANY = 1203


class Store:
    """An S3 server that checks keys, and a user who may do anything: moto, or the one at FOREBAY_TEST_S3, whose keys
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are."""

    def __init__(self) -> None:
        self.url = os.environ.get("FOREBAY_TEST_S3")
        self.is_moto = self.url is None
        if self.is_moto:
            self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
            self.server.start()
            self.url = "http://{}:{}".format(*self.server.get_host_and_port())
            self.key, self.secret = self.user()
        else:
            self.key = os.environ["AWS_ACCESS_KEY_ID"]
            self.secret = os.environ["AWS_SECRET_ACCESS_KEY"]
        self.s3 = self.client("s3", self.key, self.secret)
        self.files = fs.S3FileSystem(
            access_key=self.key,
            secret_key=self.secret,
            endpoint_override=self.url,
            region=REGION,
        )

    def user(self) -> tuple[str, str]:
        """The keys of one that moto is told of."""
        # What moto holds belongs to this process, so a server before this one left it.
        self.check_keys(False)
        requests.post(f"{self.url}/moto-api/reset", timeout=10).raise_for_status()
        iam = self.client("iam", "any", "any")
        iam.create_user(UserName="reader")
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=policy)
        self.check_keys(True)
        return key["AccessKeyId"], key["SecretAccessKey"]

    def check_keys(self, checks: bool) -> None:
        if self.is_moto:
            unchecked = b"0" if checks else b"inf"
            response = requests.post(f"{self.url}/moto-api/reset-auth", data=unchecked, timeout=10)
            response.raise_for_status()

    def stop(self) -> None:
        if self.is_moto:
            self.server.stop()

    def client(self, service: str, key: str, secret: str):
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    def bucket(self, name: str) -> None:
        """An empty one."""
        if not self.is_moto and name in {each["Name"] for each in self.s3.list_buckets()["Buckets"]}:
            for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=name):
                for each in page.get("Contents", []):
                    self.s3.delete_object(Bucket=name, Key=each["Key"])
            return
        self.s3.create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)

    def keep(self, bucket: str, key: str, content: bytes) -> None:
        """As `put`, without a request if possible."""
        if self.is_moto:
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, content)
        else:
            self.put(bucket, key, content)

    def environment(self, **more: str | None) -> dict[str, str]:
        """Of a process that may read all; None takes a variable away."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        own |= {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        own |= more
        return {key: value for key, value in own.items() if value is not None}


@pytest.fixture(scope="module")
def store():
    store = Store()
    for name in ("data", "other", "photos", "models"):
        store.bucket(name)
    yield store
    store.stop()


class Shell:
    """`forebay shell`, one process for each text."""

    def __init__(self, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        self.folder, self.environment, self.arguments = folder, environment, arguments

    def run(self, *statements: str, **more: str | None) -> subprocess.CompletedProcess:
        environment = self.environment | more
        environment = {key: value for key, value in environment.items() if value is not None}
        return shell(
            self.folder, *statements, arguments=self.arguments, environment=environment
        )

    def rows(self, *statements: str) -> list[tuple[str, ...]]:
        """Of the last statement."""
        done = self.run(*statements)
        assert done.returncode == 0, done.stderr
        # Every statement that has rows begins with their names; definitions have none.
        return [tuple(row) for row in csv.reader(io.StringIO(done.stdout))][1:]

    def fails(self, *statements: str, **more: str | None) -> str:
        done = self.run(*statements, **more)
        assert done.returncode != 0, done.stdout
        assert "Internal error" not in done.stderr and "bug in" not in done.stderr, done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def here(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    return Shell(folder, store.environment(), "--emulated-accelerators", "1")


@pytest.fixture(scope="module")
def cluster(store, tmp_path_factory):
    """A scheduler, and a worker in another process that has the keys in its environment."""
    folder = tmp_path_factory.mktemp("cluster")
    environment = store.environment()
    server = Server(folder, "--bind", "127.0.0.1:0", environment=environment, first="")
    command = [FOREBAY, "worker", "--scheduler", server.scheduler, "--cpus", "2"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert worker.stdout.readline().startswith("working for ")
    yield server
    worker.terminate()
    worker.wait(60)
    server.stop()


@pytest.fixture(scope="module", params=["here", "cluster", "flight", "embedded"])
def door(request, store, tmp_path_factory):
    """The shell's own process; the cluster for it; and servers, whose clients have no keys."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "here":
        yield Shell(folder, store.environment())
    elif request.param == "cluster":
        address = request.getfixturevalue("cluster").scheduler
        yield Shell(folder, store.environment(), "--connect", address)
    else:
        keyless = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        if request.param == "flight":
            server = request.getfixturevalue("cluster")
            yield Shell(folder, keyless, "--connect", server.uri)
        else:
            server = Server(folder, "--embedded", environment=store.environment())
            yield Shell(folder, keyless, "--connect", server.uri)
            server.stop()


def test_tables(store, door, request):
    """Parquet in folders and CSV; INSERT and COPY are read with another client."""
    name = request.node.callspec.id
    rows = pa.table({"id": list(range(1000)), "part": [i % 3 for i in range(1000)]})
    folder = f"data/{name}"
    ds.write_dataset(
        rows,
        f"{folder}/parts",
        filesystem=store.files,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("part", pa.int64())]), flavor="hive"),
    )
    for at in range(3):
        lines = "".join(f"{i},{i * i}\n" for i in range(at * 10, at * 10 + 10))
        store.put("data", f"{name}/csv/{at}.csv", f"id,square\n{lines}".encode())
    url = f"s3://data/{name}"
    parts = f"""CREATE EXTERNAL TABLE IF NOT EXISTS parts STORED AS PARQUET PARTITIONED BY (part)
                LOCATION '{url}/parts/'"""
    csvs = f"""CREATE EXTERNAL TABLE IF NOT EXISTS csvs STORED AS CSV OPTIONS ('format.has_header' 'true')
               LOCATION '{url}/csv/'"""
    found = door.rows(
        parts,
        csvs,
        "SELECT CAST(part AS BIGINT) AS part, count(*), sum(id) FROM parts GROUP BY 1 ORDER BY 1",
    )
    expected = [(str(p), str(len(r := range(p, 1000, 3))), str(sum(r))) for p in range(3)]
    assert found == expected
    joined = "SELECT count(*), sum(square) FROM parts JOIN csvs USING (id)"
    assert door.rows(parts, csvs, joined) == [("30", str(sum(i * i for i in range(30))))]

    out = f"""CREATE EXTERNAL TABLE IF NOT EXISTS outs (id BIGINT, twice BIGINT) STORED AS PARQUET
              LOCATION '{url}/out/'"""
    insert = "INSERT INTO outs SELECT id, id * 2 FROM parts WHERE id < 100"
    assert door.rows(parts, out, insert) == [("100",)]
    assert door.rows(out, "SELECT count(*), sum(twice) FROM outs") == [("100", "9900")]
    written = ds.dataset(f"{folder}/out", filesystem=store.files).to_table()
    assert sorted(written["twice"].to_pylist()) == [i * 2 for i in range(100)]
    copy = f"COPY (SELECT id FROM parts WHERE id > 989) TO '{url}/copied/x.parquet'"
    assert door.rows(parts, copy) == [("10",)]
    written = pq.read_table(f"{folder}/copied/x.parquet", filesystem=store.files)
    assert sorted(written["id"].to_pylist()) == list(range(990, 1000))


def test_delta_tables(store, door, request):
    """Begun here and added to, read by another implementation; and what that has added to it."""
    deltalake = pytest.importorskip("deltalake", reason="run tools/setup clients")
    name = request.node.callspec.id
    url = f"s3://data/{name}/delta"
    options = {
        "AWS_ACCESS_KEY_ID": store.key,
        "AWS_SECRET_ACCESS_KEY": store.secret,
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
    }
    columns = "(id BIGINT, part VARCHAR) STORED AS DELTATABLE PARTITIONED BY (part)"
    create = f"CREATE EXTERNAL TABLE delta_{name} {columns} LOCATION '{url}'"
    rows = "SELECT value, CASE value % 2 WHEN 0 THEN 'a/b' END FROM range(0, 1000)"
    counted = f"SELECT count(*), sum(id), count(part) FROM delta_{name}"
    inserted = f"INSERT INTO delta_{name} {rows}"
    assert door.rows(create, inserted, counted)[-1] == ("1000", "499500", "500")
    others = deltalake.DeltaTable(url, storage_options=options)
    found = pa.table(others.to_pyarrow_table())
    assert found.num_rows == 1000 and found["part"].null_count == 500
    more = pa.table({"id": [1000], "part": ["c"]})
    deltalake.write_deltalake(others, more, mode="append")
    # Tables of a server stay.
    again = create if name in ("here", "cluster") else "SELECT 1"
    assert door.rows(again, counted)[-1] == ("1001", "500500", "501")
    only = f"SELECT id FROM delta_{name} WHERE part = 'c'"
    assert door.rows(again, only)[-1] == ("1000",)
    overwritten = f"INSERT OVERWRITE delta_{name} SELECT 1, 'x'"
    assert door.rows(again, overwritten, counted)[-1] == ("1", "1", "1")
    others.update_incremental()
    assert pa.table(others.to_pyarrow_table()).to_pylist() == [{"id": 1, "part": "x"}]
    listed = store.s3.list_objects_v2(Bucket="data", Prefix=f"{name}/delta/_forebay")
    assert "Contents" not in listed


def test_files_by_pattern(store, door, request):
    """The pattern of the README, single files, and folders."""
    name = request.node.callspec.id
    for key in ("a.jpg", "b.jpg", "c.png", "more/d.jpg", "more/deep/e.jpg"):
        store.put("photos", f"{name}/{key}", key.encode())
    # By which some tools mark folders.
    for key in (f"{name}/", f"{name}/more/"):
        store.put("photos", key, b"")
    url = f"s3://photos/{name}"
    for pattern, keys in {
        "*.jpg": ["a.jpg", "b.jpg"],
        "[ac].*": ["a.jpg", "c.png"],
        "?.png": ["c.png"],
        "*/d.jpg": ["more/d.jpg"],
        "**/*.jpg": ["a.jpg", "b.jpg", "more/d.jpg", "more/deep/e.jpg"],
        "*": ["a.jpg", "b.jpg", "c.png"],
        "a.jpg": ["a.jpg"],
        "more": ["more/d.jpg", "more/deep/e.jpg"],
        "more/": ["more/d.jpg", "more/deep/e.jpg"],
    }.items():
        found = door.rows(
            f"SELECT url, size, arrow_cast(bytes, 'Utf8') FROM read_files('{url}/{pattern}') ORDER BY url"
        )
        assert found == [(f"{url}/{key}", str(len(key)), key) for key in keys], pattern


def test_model_of_files(store, door):
    """The README's example, word for word but for the model."""
    for at, image in enumerate(sorted((ROOT / ".forebay/images/good").glob("*.jpg"))[:2]):
        store.put("photos", f"readme/{at}.jpg", image.read_bytes())
    for file in (ROOT / ".forebay/fixtures/images-resnet-files/package").iterdir():
        store.put("models", f"resnet/{file.name}", file.read_bytes())
    found = door.rows(
        "CREATE OR REPLACE MODEL resnet LOCATION 's3://models/resnet'",
        """SELECT url, label, score
           FROM ml_predict((SELECT url, bytes FROM read_files('s3://photos/readme/*.jpg')),
                           MODEL resnet, DESCRIPTOR(bytes), on_error => 'route') ORDER BY url""",
    )
    assert [row[0] for row in found] == [f"s3://photos/readme/{at}.jpg" for at in range(2)]
    assert all(row[1] and float(row[2]) > 0 for row in found)


def test_a_package_that_changes(store, tmp_path):
    cache = tmp_path / "cache"
    environment = store.environment(FOREBAY_CACHE=str(cache))
    here = Shell(tmp_path, environment, "--emulated-accelerators", "1")
    for file in ECHO.iterdir():
        store.put("models", f"echo/{file.name}", file.read_bytes())
    create = "CREATE OR REPLACE MODEL echo LOCATION 's3://models/echo'"
    query = "SELECT ml_predict(MODEL echo, 7) AS x"
    assert len(here.rows(create, query)) == 1
    shutil.rmtree(cache)
    manifest = (ECHO / "model.toml").read_bytes()
    store.put("models", "echo/model.toml", manifest + b"\n# another\n")
    assert "s3://models/echo: model.toml has changed" in here.fails(query)
    assert len(here.rows(create, query)) == 1


ODD = ["a b", "a%20b", "100%", "a+b", "ä€😀", "a#b", "a?b", "a*b", "[x]", "x&y=z", "'", "a;b", "~", "tail "]


def test_odd_keys(store, door):
    # The server takes signatures of folders with a space for wrong ones.
    store.check_keys(False)
    for at, key in enumerate(ODD):
        store.put("other", f"odd keys/{key}", f"<{at}>".encode())
    listed = "SELECT url, arrow_cast(bytes, 'Utf8') FROM read_files('s3://other/odd%20keys/*')"
    found = dict(door.rows(listed))
    assert sorted(found.values()) == sorted(f"<{at}>" for at in range(len(ODD)))
    # Each is found under the URL that is given for it.
    quoted = [url.replace("'", "''") for url in found]
    single = [
        f"SELECT url, arrow_cast(bytes, 'Utf8') FROM read_files('{url}')" for url in quoted
    ]
    assert dict(door.rows(" UNION ALL ".join(single))) == found
    store.check_keys(True)


def test_more_keys_than_one_answer_holds(store, here):
    for at in range(MANY):
        store.keep("other", f"many/{at:04}", b"x" * (at % 7))
    sizes = sum(at % 7 for at in range(MANY))
    found = here.rows("SELECT count(*), sum(size) FROM read_files('s3://other/many/*')")
    assert found == [(str(MANY), str(sizes))]


def test_a_whole_bucket(store, here):
    store.bucket("small")
    store.put("small", "a.txt", b"a")
    store.put("small", "deep/b.txt", b"b")
    for url, count in {"s3://small/*": 1, "s3://small/**": 2, "s3://small/": 2, "s3://small": 2}.items():
        found = here.rows(f"SELECT count(bytes) FROM read_files('{url}')")
        assert found == [(str(count),)], url


def test_folders_of_the_same_name(store, here):
    """In two buckets, and in one that gets another file."""
    for bucket, numbers in (("data", [1, 2]), ("other", [30])):
        table = pa.table({"x": numbers})
        pq.write_table(table, f"{bucket}/same/1.parquet", filesystem=store.files)
    total = "SELECT sum(x) FROM 's3://{}/same/'"
    both = "SELECT a, b FROM ({}) AS one(a), ({}) AS two(b)"
    found = here.rows(both.format(total.format("data"), total.format("other")))
    assert found == [("3", "30")]
    pattern = "SELECT sum(x) FROM 's3://data/same/*.parquet'"
    single = "SELECT sum(x) FROM 's3://data/same/1.parquet'"
    assert here.rows(pattern) == here.rows(single) == [("3",)]


def test_files_of_equal_paths_sizes_and_times(store, here):
    """Of two buckets; a store's times are seconds, and a script that writes to both takes less."""
    if not store.is_moto:
        pytest.skip("no other server lets anybody say when an object was written")
    found = []
    for bucket, number in (("data", 1), ("other", 2)):
        path = f"{bucket}/equal/1.parquet"
        pq.write_table(pa.table({"x": [number]}), path, filesystem=store.files)
        key = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket, "equal/1.parquet")
        key.last_modified = datetime(2026, 1, 1)
        found.append((key.size, key.last_modified))
    assert found[0] == found[1]
    rows = "SELECT count(*) FROM 's3://{}/equal/1.parquet' WHERE x = {}"
    both = "SELECT a, b FROM ({}) AS one(a), ({}) AS two(b)"
    first, second = rows.format("data", 1), rows.format("other", 2)
    assert here.rows(first, both.format(first, second))[-1] == ("1", "1")


def test_a_file_that_comes_later(store, door, request):
    name = request.node.callspec.id
    url = f"data/{name}/later"
    pq.write_table(pa.table({"x": [1]}), f"{url}/1.parquet", filesystem=store.files)
    copy = f"COPY (SELECT 10 AS x) TO 's3://{url}/2.parquet'"
    create = f"CREATE EXTERNAL TABLE later STORED AS PARQUET LOCATION 's3://{url}/'"
    total = "SELECT sum(x) AS total FROM later"
    done = door.run(create, total, copy, total)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.split() if line.isdigit()] == ["1", "1", "11"]


def test_keys_of_a_table(store, here):
    """OPTIONS instead of the environment, and for what names the bucket later."""
    store.put("data", "options/a.csv", b"x\n1\n2\n")
    options = f"""'aws.access_key_id' '{store.key}', 'aws.secret_access_key' '{store.secret}',
        'aws.endpoint' '{store.url}', 'aws.allow_http' 'true', 'aws.region' '{REGION}'"""
    create = f"""CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://data/options/'
        OPTIONS ('format.has_header' 'true', {options})"""
    count = "SELECT count(*) FROM t, read_files('s3://data/options/*')"
    nobody = dict.fromkeys(
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"]
    )
    done = here.run(create, count, **nobody)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "2"), done.stderr
    # Before the environment's, of whichever kind.
    done = here.run(create, count, **nobody, AWS_ENDPOINT_URL_S3="http://127.0.0.1:9")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "2"), done.stderr


def test_what_is_wrong_is_said(store, here):
    store.put("data", "there.csv", b"x\n1\n")

    def said(*expected: str, url: str = "s3://data/there.csv", **more: str | None) -> None:
        for statement in (
            f"SELECT * FROM read_files('{url}')",
            f"SELECT * FROM '{url}'",
            f"CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{url}'",
            f"CREATE MODEL m LOCATION '{url}'",
            f"COPY (SELECT 1) TO '{url}'",
            f"COPY (SELECT 1) TO '{url}' STORED AS PARQUET",
        ):
            begun = time.monotonic()
            text = here.fails(statement, **more)
            # Nothing is tried again for minutes.
            assert time.monotonic() - begun < 60
            assert all(part in text for part in (url[:10], *expected)), (statement, text)

    said("there is no such bucket", url="s3://nowhere/there.csv")
    said("access denied", "AWS_SECRET_ACCESS_KEY", AWS_SECRET_ACCESS_KEY="wrong")
    # Versity's gateway says then that there is no such object.
    if store.is_moto:
        said("access denied", "AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY_ID="unknown")
    said("no answer: ", "AWS_ENDPOINT_URL", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    said("AWS_ALLOW_HTTP=true", AWS_ALLOW_HTTP=None)
    text = here.fails("FROM read_files('s3://data/*')", AWS_SECRET_ACCESS_KEY="wrong")
    assert "SignatureDoesNotMatch" in text, text


def test_what_is_not_there_is_said(store, here):
    missing = "s3://data/missing.csv"
    assert f"no file matches '{missing}'" in here.fails(f"FROM read_files('{missing}')")
    assert f"no file matches '{missing}'" in here.fails(f"FROM '{missing}'")
    assert "s3://data/x/model.toml" in here.fails("CREATE MODEL m LOCATION 's3://data/x'")
    for statement in (
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://data/a?b.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://data/*.csv'",
        "COPY (SELECT 1) TO 's3://data/a#b.csv'",
    ):
        assert "without a pattern or a query" in here.fails(statement)


def test_keys_of_clients(store, tmp_path):
    """A server reads with its own: what it opens, all its clients share."""
    server = Server(tmp_path, "--embedded", environment=store.environment())
    door = Shell(tmp_path, store.environment(), "--connect", server.uri)
    create = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://data/' OPTIONS ('aws.region' 'x')"
    assert "a server reads with the keys of its own environment" in door.fails(create)
    server.stop()


@pytest.mark.parametrize("url", ["az://box/x.csv", "hdfs://name:9000/x.csv", "foo://x/y.csv"])
def test_unknown_stores_are_named(door, url):
    scheme = url.split(":")[0]
    for statement in (
        f"SELECT * FROM read_files('{url}')",
        f"CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{url}'",
        f"CREATE EXTERNAL TABLE t (x INT) STORED AS CSV LOCATION '{url}'",
        f"CREATE MODEL m LOCATION '{url}'",
        f"COPY (SELECT 1) TO '{url}'",
    ):
        text = door.fails(statement)
        assert url[: url.rindex("/")] in text and f"'{scheme}' is not a kind of store" in text, text
        assert "known are s3, gs, oss, cos, http, https and file" in text, text


NUMBERS = 12


def test_a_state_in_a_store(store, tmp_path):
    """A job goes on, once, in another server while its own is there, stopped, and wakes again."""
    package = tmp_path / "slow"
    package.mkdir()
    manifest = (ECHO / "model.toml").read_text().replace("service_ms = 1", "service_ms = 100")
    (package / "model.toml").write_text(manifest)
    for number in range(NUMBERS):
        rows = "".join(f"{number * 8 + n}\n" for n in range(8))
        store.put("data", f"numbers/{number}.csv", f"n\n{rows}".encode())
    first = f"""CREATE OR REPLACE MODEL slow LOCATION '{package}';
        CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 's3://data/numbers/'
        OPTIONS ('format.has_header' 'true')"""
    arguments = ["--embedded", "--state", "s3://data/states/one/", "--takeover-after", "3"]

    def serve(name: str) -> Server:
        environment = store.environment()
        return Server(tmp_path / name, *arguments, environment=environment, first=first)

    def ask(server: Server, *statements: str, more: tuple[str, ...] = ()) -> list[str]:
        arguments = ("--connect", server.uri, *more)
        done = shell(tmp_path, *statements, arguments=arguments, environment=store.environment())
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    stopped = serve("first")
    copy = """COPY (SELECT n, digest FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n)))
        TO 's3://data/written/' STORED AS PARQUET"""
    options = ["SET forebay.resumable = true", "SET forebay.part_bytes = 1"]
    (job,) = ask(stopped, *options, copy, more=("--detach",))

    def complete() -> int:
        found = store.s3.list_objects_v2(Bucket="data", Prefix="written/").get("Contents", [])
        return sum("/parts/" in key["Key"] for key in found)

    while complete() < 2:
        time.sleep(0.02)
    stopped.process.send_signal(signal.SIGSTOP)
    assert complete() < NUMBERS, "the job was over before its server was stopped"
    second = serve("second")
    known = "SELECT state FROM forebay.jobs"
    assert ask(second, known) == ["state", "interrupted"]
    ask(second, f"RESUME JOB '{job}'")
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.process.wait(60) == 1
    waited = ask(second, f"WAIT FOR JOB '{job}'")
    assert waited[1].startswith(f"{job},finished,{NUMBERS * 8},"), waited
    written = ds.dataset("data/written", filesystem=store.files).to_table()
    assert sorted(written["n"].to_pylist()) == list(range(NUMBERS * 8))
    # Of one that is killed nothing is known but its silence.
    second.process.kill()
    third = serve("third")
    assert ask(third, known) == ["state"] or ask(third, known) == []
    third.stop()
    serve("fourth").stop()
