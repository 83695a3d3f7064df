"""Files on web servers: Python's own, which sends no parts of files, and one that does."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import shell

ROWS = 300_000


class Handler(http.server.SimpleHTTPRequestHandler):
    """What comes behind the first part of a path says how the server behaves."""

    def log_message(self, *_: object) -> None:
        pass

    def send_head(self):
        self.server.asked.append((self.command, self.path, self.headers.get("Range")))
        _, how, path = (*self.path.split("/", 2), "")[:3]
        self.path = f"/{path}"
        if how == "moved":
            self.send_response(302)
            self.send_header("Location", f"/whole/{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if how == "swap" and (later := self.server.folder / "later.parquet").exists():
            later.replace(self.server.folder / "t.parquet")
        if how == "busy" and self.server.failures:
            self.server.failures -= 1
            return self.send_error(503)
        if how.isdigit():
            return self.send_error(int(how))
        if how == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(2**31))
            self.end_headers()
            return None
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if how == "parts" and part:
            return self.send_part(*part.groups())
        return super().send_head()

    def send_part(self, first: str, last: str) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        size = len(content)
        begin = int(first) if first else size - int(last)
        end = min(int(last) + 1, size) if first and last else size
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self.wfile.write(content[begin:end])

    def copyfile(self, source, target) -> None:
        content = source.read()
        with contextlib.suppress(ConnectionError):
            target.write(content[: self.server.bytes_max])


class Web:
    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.asked, self.server.failures, self.server.bytes_max = [], 0, None
        self.server.folder = self.folder = folder
        self.url = "http://127.0.0.1:{}".format(self.server.server_port)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def asked(self, command: str) -> list[str | None]:
        """The parts that were asked for since the last time."""
        asked, self.server.asked = self.server.asked, []
        return [part for found, _, part in asked if found == command]


@pytest.fixture
def web(tmp_path):
    folder = tmp_path / "web"
    folder.mkdir()
    table = pa.table({"id": list(range(ROWS)), "text": [str(i * i) for i in range(ROWS)]})
    pq.write_table(table, folder / "t.parquet", row_group_size=ROWS // 10)
    (folder / "t.csv").write_text("x\n1\n2\n")
    web = Web(folder)
    yield web
    web.server.shutdown()


QUERY = "SELECT count(*) AS n, sum(id) AS s, max(length(text)) AS l FROM '{}'"
ANSWER = f"n,s,l\n{ROWS},{sum(range(ROWS))},{len(str((ROWS - 1) ** 2))}\n"


@pytest.mark.parametrize("how", ["whole", "parts", "moved"])
def test_parquet(web, tmp_path, how):
    url = f"{web.url}/{how}/t.parquet"
    assert shell(tmp_path, QUERY.format(url)).stdout == ANSWER
    parts = web.asked("GET")
    # Without parts the file is sent once, whoever reads it.
    assert parts.count(None) == {"whole": 1, "parts": 0, "moved": 2}[how], parts
    create = f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{url}'"
    assert shell(tmp_path, create, "SELECT count(*) AS n FROM t WHERE id > 9").stdout == f"n\n{ROWS - 10}\n"


def test_a_file_that_changes_is_sent_again(web, tmp_path):
    """Between two queries of one process."""
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), web.folder / "later.parquet")
    query = QUERY.format(f"{web.url}/whole/t.parquet")
    swap = f"SELECT count(bytes) AS b FROM read_files('{web.url}/swap/t.csv')"
    assert shell(tmp_path, query, query, swap, query).stdout == f"{ANSWER}{ANSWER}b\n1\nn,s,l\n1,1,1\n"
    assert web.asked("GET").count(None) == 3


def test_files(web, tmp_path):
    read = "SELECT url, arrow_cast(bytes, 'Utf8') AS b FROM read_files('{}')"
    (web.folder / "a b.txt").write_text("spaces")
    found = shell(tmp_path, read.format(f"{web.url}/whole/a%20b.txt")).stdout
    assert found == f"url,b\n{web.url}/whole/a b.txt,spaces\n"
    web.server.failures = 2
    found = shell(tmp_path, f"SELECT count(*) AS n FROM '{web.url}/busy/t.csv'").stdout
    assert found == "n\n2\n" and web.server.failures == 0


@pytest.mark.parametrize(
    "path, expected",
    [
        ("404/t.parquet", "404/t.parquet: there is no file of this name"),
        ("403/t.parquet", "403/t.parquet: access denied: 403 Forbidden; web servers are read without a log-in"),
        ("401/t.parquet", "401/t.parquet: access denied: 401 Unauthorized"),
        ("500/t.parquet", "500/t.parquet: the server says 500 Internal Server Error"),
        ("huge/t.parquet", "more than the 1073741824 that are read whole"),
        ("whole/t.parquet?x=1", "url_download reads it"),
        ("whole/*.parquet", "the server does not list what is in folders"),
    ],
)
def test_what_is_wrong_is_said(web, tmp_path, path, expected):
    done = shell(tmp_path, QUERY.format(f"{web.url}/{path}"))
    assert done.returncode == 1 and "bug in DataFusion" not in done.stderr, done.stderr
    assert expected in done.stderr, done.stderr


def test_a_store_without_keys(web, tmp_path):
    """Requests are not signed then, and this one is denied."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"AWS_ENDPOINT_URL": f"{web.url}/403", "AWS_ALLOW_HTTP": "true"}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true"}
    for name in ("'s3://bucket/x.csv'", "read_files('s3://bucket/*')"):
        done = shell(tmp_path, f"SELECT * FROM {name}", environment=environment)
        expected = "access denied: 403 Forbidden; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        assert done.returncode == 1 and expected in done.stderr, done.stderr


def test_a_body_that_ends_early(web, tmp_path):
    web.server.bytes_max = 1000
    done = shell(tmp_path, QUERY.format(f"{web.url}/whole/t.parquet"))
    assert done.returncode == 1 and f"{web.url}/whole/t.parquet: " in done.stderr, done.stderr
