"""The logic of benches/device: what is kept when steps fail, how much work a figure takes, what peers leave."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benches/device"))

import checks  # noqa: E402
import engine  # noqa: E402
import peers  # noqa: E402
import rates  # noqa: E402
import run  # noqa: E402
import watch  # noqa: E402
from record import LEFT_OUT, Record  # noqa: E402


def record_of(tmp_path: Path, seconds: float = 60.0) -> Record:
    """One that has so much time."""
    about = {"device": "cpu", "torch": "2", "date": "today"}
    return Record(tmp_path / "found.json", about, time.monotonic() + seconds)


@pytest.mark.parametrize("kind", [StopIteration, TypeError, AttributeError, AssertionError, OSError])
def test_each_step_is_written_whatever_the_next_one_raises(kind: type[Exception], tmp_path: Path) -> None:
    record = record_of(tmp_path)

    def fails() -> rates.Found:
        raise kind("no such thing")

    record.step("first", lambda: {"rows_per_s": 2.0})
    record.step("second", fails)
    record.step("third", lambda: {"seen": "well"})
    written = json.loads(record.path.read_text())
    assert written["device"] == "cpu"
    assert written["steps"]["first"]["rows_per_s"] == 2.0
    assert written["steps"]["second"]["error"] == f"{kind.__name__}: no such thing"
    assert written["steps"]["third"]["seen"] == "well"
    assert record.failed == ["second"]
    lines = run.table(record).splitlines()
    assert [line.split()[:2] for line in lines[-3:]] == [["first", "2"], ["second", "FAILED"], ["third", "passed"]]


def test_what_there_is_no_time_for_is_left_out_and_is_no_failure(tmp_path: Path) -> None:
    record = record_of(tmp_path, 5.0)

    def too_long() -> rates.Found:
        raise subprocess.TimeoutExpired("forebay", 1.0)

    assert record.step("long", lambda: {"seen": "never"}, needs_s=20.0) == {"note": LEFT_OUT}
    assert record.step("longer", too_long)["note"] == LEFT_OUT
    assert record.failed == [] and len(json.loads(record.path.read_text())["steps"]) == 2


@pytest.mark.parametrize("fails", [True, False])
def test_a_smoke_test_that_fails_ends_all(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def smoke(_: object) -> str:
        if fails:
            raise AssertionError("wrong results")
        return "right"

    forebay = SimpleNamespace(deadline=0.0)
    bed = SimpleNamespace(forebay=forebay)
    monkeypatch.setattr(checks, "SMOKE", {"smoke": smoke})
    monkeypatch.setattr(checks, "CHECKS", {"check": lambda bed: "well"})
    monkeypatch.setattr(run, "make", lambda *_: bed)
    monkeypatch.setattr(run.benches, "plan", lambda bed: {"bench": lambda: {"rows_per_s": 1.0}})
    record = record_of(tmp_path, 600.0)
    run.everything(record, tmp_path, tmp_path, "cpu")
    assert list(record.steps) == (["smoke"] if fails else ["smoke", "check", "bench"])
    # Until it has passed, it has a minute.
    assert (forebay.deadline == record.deadline) == (not fails)
    assert bool(record.failed) == fails


@pytest.mark.parametrize(("only", "steps"), [("enc", ["bench"]), ("^c", ["check"]), ("(?!)", [])])
def test_after_the_smoke_test_come_the_steps_that_are_named(
    only: str, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = SimpleNamespace(forebay=SimpleNamespace(deadline=0.0))
    monkeypatch.setattr(checks, "SMOKE", {"smoke": lambda bed: "right"})
    monkeypatch.setattr(checks, "CHECKS", {"check": lambda bed: "well"})
    monkeypatch.setattr(run, "make", lambda *_: bed)
    monkeypatch.setattr(run.benches, "plan", lambda bed: {"bench": lambda: {"rows_per_s": 1.0}})
    record = record_of(tmp_path, 600.0)
    run.everything(record, tmp_path, tmp_path, "cpu", re.compile(only))
    assert list(record.steps) == ["smoke", *steps]


def test_a_figure_rests_on_enough_work() -> None:
    work = rates.Work(seconds=5.0, rounds=3, rows=1, images=1, repeats=1)
    assert [rates.passes(work, one) for one in (0.3, 5.0, 7.0, 0.0)] == [17, 1, 1, 1]
    asked: list[int] = []

    def passes(times: int) -> float:
        asked.append(times)
        return 0.5 * times + (3.0 if len(asked) == 1 else 0.0)

    found = rates.rate(passes, 100, work)
    # One that is not counted, one that says how long it takes, and three rounds.
    assert asked == [1, 1, 10, 10, 10]
    assert found == {"rows_per_s": 200.0, "rounds": [200.0] * 3, "rows": 1000, "first_s": 3.5}


def test_peers_give_the_module_back_as_it_was() -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="in between"):
        with peers.on_device(module, "cpu", "bf16") as there:
            assert there.weight.dtype == torch.bfloat16
            raise RuntimeError("in between")
    assert module.weight.dtype == torch.float32
    batches = [torch.ones(3, 2), torch.ones(1, 2)]
    for loop in (peers.blocking, peers.pipelined, peers.ceiling):
        assert loop(module, batches, "cpu")(2) > 0
    results = peers.results((torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)), "cpu", wait=True)
    assert [result.dtype for result in results] == [torch.float32, torch.int64]


def test_what_the_device_does_not_say_is_left_out() -> None:
    printed = "1980, 512.5, 97, 40000, 60\n1965, [N/A], 99, 41000, 61\nbroken line\n1900, 500.0, 98, 42000,"
    assert watch.summary(printed) == {
        "clock_mhz": {"median": 1965.0, "most": 1980.0},
        "power_w": {"median": 506.25, "most": 512.5},
        "busy_percent": {"median": 98.0, "most": 99.0},
        "memory_mib": {"median": 41000.0, "most": 42000.0},
        "temperature_c": {"median": 60.5, "most": 61.0},
    }
    assert watch.summary("") == {}


def test_a_plan_without_the_model_is_an_error_that_shows_it() -> None:
    plan = "a\n  InferenceExec: model=m, metrics=[rows_inferred=12, busy_time=1.5s, oom_splits=0]\nb"
    assert engine.inference(plan) == {"rows_inferred": "12", "busy_time": "1.5s", "oom_splits": "0"}
    with pytest.raises(engine.SqlError, match="no InferenceExec: EmptyExec"):
        engine.inference("EmptyExec")
