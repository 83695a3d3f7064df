"""The command `forebay` in environments with and without torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "forebay"
# In place of the executable: prints what it is called with.
FAKE = """#!{python} -S
import json, os, sys
names = ["FOREBAY_PYTHON", "FOREBAY_LIBTORCH", "OTHER"]
print(json.dumps([sys.argv, {{name: os.environ.get(name) for name in names}}]))
sys.exit(7)
"""


@pytest.fixture
def site(tmp_path):
    """A folder of packages with forebay in it, as pip leaves it."""
    site = tmp_path / "site-packages"
    ignored = shutil.ignore_patterns("export", "__pycache__")
    shutil.copytree(PACKAGE, site / "forebay", ignore=ignored)
    binary = site / "forebay/bin/forebay"
    binary.parent.mkdir()
    binary.write_text(FAKE.format(python=sys.executable))
    binary.chmod(0o755)
    return site


def add_torch(site: Path, version: str) -> Path:
    """A package that fails if it is imported."""
    library = site / "torch/lib/libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (site / "torch/__init__.py").write_text("raise AssertionError('torch was imported')")
    (site / "torch/version.py").write_text(f"__version__ = '{version}'\n")
    return library.parent


def run(*folders: Path, arguments=("doctor", "--x y"), **variables: str):
    """`python -m forebay` with these folders of packages and no others."""
    path = os.pathsep.join(map(str, folders))
    return subprocess.run(
        [sys.executable, "-S", "-B", "-m", "forebay", *arguments],
        env={"PATH": os.defpath, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
    )


def told(*folders: Path, **variables: str):
    """What the executable was told, and its exit code's way back."""
    result = run(*folders, **variables)
    assert result.returncode == 7, result.stderr
    arguments, environment = json.loads(result.stdout)
    assert arguments == [str(folders[0] / "forebay/bin/forebay"), "doctor", "--x y"]
    return environment


def test_it_is_told_of_this_python_and_of_no_torch(site):
    expected = {"FOREBAY_PYTHON": sys.executable, "FOREBAY_LIBTORCH": None, "OTHER": "kept"}
    assert told(site, OTHER="kept") == expected


@pytest.mark.parametrize("version", ["2.11.0", "2.10.0+cpu"])
def test_it_is_told_of_the_torch_beside_it_and_judges_itself(site, version):
    folder = add_torch(site, version)
    assert told(site)["FOREBAY_LIBTORCH"] == str(folder)


def test_torch_may_be_in_another_folder_of_packages(site, tmp_path):
    folder = add_torch(tmp_path / "system", "2.11.0")
    assert told(site, tmp_path / "system")["FOREBAY_LIBTORCH"] == str(folder)


def test_a_folder_that_is_called_torch_is_not_torch(site):
    (site / "torch/lib").mkdir(parents=True)
    assert told(site)["FOREBAY_LIBTORCH"] is None


def test_who_has_said_something_is_not_overruled(site):
    add_torch(site, "2.11.0")
    said = told(site, FOREBAY_LIBTORCH="/mine", FOREBAY_PYTHON="")
    assert said == {"FOREBAY_PYTHON": sys.executable, "FOREBAY_LIBTORCH": "/mine", "OTHER": None}


def test_an_executable_for_another_machine_is_named(site):
    binary = site / "forebay/bin/forebay"
    binary.write_bytes(b"\x7fELF" + bytes(60))
    result = run(site)
    assert result.returncode == 1
    said = f"forebay: {binary} cannot be run: Exec format error; it needs Linux on x86-64 with glibc"
    assert result.stderr.startswith(said) and "this is Linux on " in result.stderr


def test_a_missing_executable_is_named(site):
    binary = site / "forebay/bin/forebay"
    binary.unlink()
    result = run(site)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"forebay: {binary} is missing: install it again (pip install ")


def test_connect_says_which_extra_is_missing(site):
    program = "import forebay; forebay.connect()"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    last = result.stderr.splitlines()[-1]
    assert last == (
        "ImportError: forebay.connect() needs the Python package adbc_driver_flightsql: "
        "pip install 'forebay[client]'"
    )
