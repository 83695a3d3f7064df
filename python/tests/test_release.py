"""What tools/release packs, and what it refuses."""

import importlib.machinery
import importlib.util
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The script as a module, writing elsewhere."""
    loader = importlib.machinery.SourceFileLoader("release", str(ROOT / "tools/release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "DIST", tmp_path)
    return module


def wheel(folder: Path, said: str) -> Path:
    """A wheel whose executable prints this."""
    path = folder / "forebay.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("forebay/bin/forebay", f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        archive.writestr("forebay/lib/libforebay_torch.so", "library")
    return path


def test_the_archive_is_the_same_bytes_each_time(release, tmp_path):
    packed = wheel(tmp_path, "forebay 7")
    path = release.pack(packed, "7", 1_700_000_000)
    first = path.read_bytes()
    assert release.pack(packed, "7", 1_700_000_000).read_bytes() == first
    with tarfile.open(path) as archive:
        members = {member.name.removeprefix("forebay-7-x86_64-linux/"): member for member in archive}
    subprocess.run(("tar", "-xzf", path, "-C", tmp_path), check=True)
    assert list(members) == [
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "THIRD_PARTY.md",
        "bin/forebay",
        "lib/libforebay_torch.so",
    ]
    assert {(one.uid, one.gid, one.mtime) for one in members.values()} == {(0, 0, 1_700_000_000)}
    ran = subprocess.run(tmp_path / "forebay-7-x86_64-linux/bin/forebay", capture_output=True, text=True)
    assert ran.stdout == "forebay 7\n"


def test_an_executable_of_this_commit_is_taken(release, tmp_path):
    said = f"forebay 7\ncommit      {COMMIT}\nprofile     release"
    release.check_executable(wheel(tmp_path, said), COMMIT)


@pytest.mark.parametrize(
    "said",
    [
        "forebay 7",
        f"forebay 7\ncommit      {COMMIT[::-1]}\nprofile     release",
        f"forebay 7\ncommit      {COMMIT} (modified)\nprofile     release",
        f"forebay 7\ncommit      {COMMIT}\nprofile     dev",
    ],
)
def test_another_executable_is_refused(release, tmp_path, said):
    with pytest.raises(release.ReleaseError) as refused:
        release.check_executable(wheel(tmp_path, said), COMMIT)
    assert COMMIT in str(refused.value)
    assert said in str(refused.value)


def test_what_only_tests_need_is_not_in_the_bill_of_materials(release):
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    versions = {one["name"]: one["version"] for one in locked}
    bill = {
        "components": [
            {"bom-ref": "a", "name": "tokio", "version": versions["tokio"]},
            {"bom-ref": "b", "name": "sqllogictest", "version": versions["sqllogictest"]},
        ],
        "dependencies": [{"ref": "a", "dependsOn": ["b"]}, {"ref": "b"}],
    }
    release.keep_compiled(bill)
    assert [one["name"] for one in bill["components"]] == ["tokio"]
    assert bill["dependencies"] == [{"ref": "a", "dependsOn": []}]
