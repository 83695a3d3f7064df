"""Servers for tests with clients that are not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
FOREBAY = os.environ["FOREBAY_BINARY"]
ECHO = ROOT / "tests/models/echo"
SENTIMENT = ROOT / "tests/models/sentiment"

INIT = f"""
CREATE TABLE words AS SELECT column1 AS id, column2 AS word
  FROM (VALUES (1, 'red'), (2, 'green'), (3, NULL));
CREATE OR REPLACE MODEL echo LOCATION '{ECHO}';
CREATE OR REPLACE MODEL sentiment LOCATION '{SENTIMENT}';
"""


class Server:
    """A `forebay serve` of its own, on a free port."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        first: str = INIT,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        init = folder / "init.sql"
        init.write_text(first)
        command = [FOREBAY, "--catalog", str(folder / "catalog"), "serve", *arguments]
        command += ["--init", str(init), "--flight-sql", "127.0.0.1:0"]
        command += ["--cpus", "2", "--emulated-accelerators", "1"]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.scheduler = line.split()[-1]
            if line.startswith("Arrow Flight SQL on "):
                self.address = line.split()[-1]
                break
        else:
            raise AssertionError(f"the server ended: {self.process.wait()}")

    @property
    def uri(self) -> str:
        return f"grpc://{self.address}"

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0, "the server did not end well"


def shell(
    folder: Path, *statements: str, arguments: tuple[str, ...] = (), environment=None
) -> subprocess.CompletedProcess:
    """Runs statements in a `forebay shell` of their own."""
    command = [FOREBAY, "--catalog", str(folder / "catalog"), "shell", "--quiet"]
    command += ["--format", "csv", *arguments]
    command += [part for statement in statements for part in ("-c", statement)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


MODES = {
    "embedded": ["--embedded"],
    "cluster": ["--worker", "--bind", "127.0.0.1:0"],
}


@pytest.fixture(scope="session", params=MODES)
def server(request, tmp_path_factory):
    """Queries run in the server's process, or on a cluster."""
    server = Server(tmp_path_factory.mktemp(request.param), *MODES[request.param])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    """Queries run in the server's process."""
    server = Server(tmp_path_factory.mktemp("alone"), *MODES["embedded"])
    yield server
    server.stop()


def add_user(users: Path, name: str, password: str, role: str = "read") -> None:
    command = [FOREBAY, "user", "add", "--role", role, "--users", str(users), "--", name]
    subprocess.run(command, input=f"{password}\n", text=True, check=True)
