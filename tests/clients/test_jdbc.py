"""Apache's JDBC driver for Flight SQL, through which DBeaver and other tools of Java come.

The program in `jdbc/` asks what they ask, checks what it gets, and prints what is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import FOREBAY, MODES, ROOT, Server, add_user

REPOSITORY = ROOT / ".forebay/maven"
DRIVERS = "org/apache/arrow/flight-sql-jdbc-driver/*/*.jar"
SECONDS_MAX = 300

if not all(map(shutil.which, ("java", "javac", "mvn"))):
    pytest.skip("needs a JDK and Maven: apt install default-jdk maven", allow_module_level=True)
if not REPOSITORY.exists():
    pytest.skip("needs the JDBC driver: tools/setup clients", allow_module_level=True)


@pytest.fixture(scope="session")
def check(tmp_path_factory):
    """Compiles the program, and gives back what runs it."""
    outputs = tmp_path_factory.mktemp("jdbc")
    project = Path(__file__).parent / "jdbc/pom.xml"
    options = [f"-Dmaven.repo.local={REPOSITORY}", f"-Doutputs={outputs}"]
    compile = ["mvn", "--offline", "--batch-mode", "--quiet", *options, "--file", str(project)]
    subprocess.run([*compile, "compile"], check=True)
    [driver] = REPOSITORY.glob(DRIVERS)
    # Arrow reaches into buffers of the JDK; the driver shifts times wherever the zone is not UTC.
    java = ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-Duser.timezone=UTC"]
    java += ["-cp", f"{outputs}/classes:{driver}", "forebay.Main"]

    def run(**arguments: str) -> None:
        given = [f"{key}={value}" for key, value in arguments.items()]
        found = subprocess.run([*java, *given], capture_output=True, text=True, timeout=SECONDS_MAX)
        assert found.returncode == 0, found.stdout + found.stderr

    return run


def test_what_tools_ask(check, server):
    check(url=f"jdbc:arrow-flight-sql://{server.address}?useEncryption=false")


def test_log_in_and_encryption(check, tmp_path):
    if "FOREBAY_CERTIFICATE" not in os.environ:
        pytest.skip("needs a certificate: cargo test --test api -- clients_that_are_not_ours")
    users = tmp_path / "users.toml"
    for name, password in [("ada", "lovelace"), ("u7", "ppppppp"), ("ädä", "lövelace"),
                           ("colons", ":a::b:")]:
        add_user(users, name, password)
    command = [FOREBAY, "user", "token", "dashboard", "--users", str(users)]
    token = subprocess.run(command, text=True, check=True, capture_output=True).stdout.strip()
    encrypted = ["--flight-tls-cert", os.environ["FOREBAY_CERTIFICATE"],
                 "--flight-tls-key", os.environ["FOREBAY_CERTIFICATE_KEY"]]
    server = Server(tmp_path, *MODES["embedded"], "--users", str(users), *encrypted)
    try:
        check(guarded=server.address, authority=os.environ["FOREBAY_AUTHORITY"], token=token)
    finally:
        server.stop()
