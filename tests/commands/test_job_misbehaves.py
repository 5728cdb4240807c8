"""A job that hangs or answers garbage is its own row's failure, with its last words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_runs import MLP
from fake_job import MISBEHAVE

from unifiedamp.workloads.workers import Worker

BAD = [name for name in MISBEHAVE if name != "tells nonsense"]
FEW = ["hangs", "writes garbage", "answers other types"]
"""Where each of them takes the same way as elsewhere."""
PLACES = [*(("train", does) for does in BAD), *((at, does) for at in ("begin", "turn") for does in FEW)]
HANGS = ("hangs", "tells the same")
PROBES = [*(("probe", does) for does in (*FEW, "answers nan")), *(("turn", does) for does in FEW)]


@pytest.fixture
def misbehave(monkeypatch, fake):
    def put(does, at, policy):
        for key, value in (("DOES", does), ("AT", at), ("IS", policy)):
            monkeypatch.setenv(f"FAKE_{key}", value)

    return put


def seconds(does):
    """The time limit: short where it is waited for, long enough elsewhere for a machine that does much besides."""
    return 4 if does in HANGS else 60


def assert_told(reason, does):
    if does in HANGS:
        assert "said nothing new for 4 seconds and was stopped: last words" in reason
    else:
        assert "its answer makes no sense (" in reason
        assert reason.endswith(": last words")


@pytest.mark.parametrize(("at", "does"), PLACES)
def test_compare(command, misbehave, does, at):
    misbehave(does, at, "mixed_bfloat16")
    done = command("compare", MLP, "--policies", "float32,mixed_bfloat16", "--rounds", 1, "--timeout", seconds(does),
                   "--out", "out", "--json")  # fmt: skip
    assert done.code == 1
    good, bad = done.json["rows"]
    assert (good["state"], bad["state"]) == ("done", "failed")
    assert_told(bad["reason"], does)
    assert json.loads(Path("out/compare.json").read_text())["rows"][1]["reason"] == bad["reason"]


@pytest.mark.parametrize("does", ["hangs", "answers a word"])
def test_the_search_for_a_batch_size(command, misbehave, does):
    misbehave(does, "fits", "float32")
    done = command("compare", MLP, "--policies", "float32", "--find-batch-size", "--rounds", 1, "--timeout",
                   seconds(does), "--json")  # fmt: skip
    assert done.code == 1
    assert_told(done.json["rows"][0]["reason"], does)


@pytest.mark.parametrize("does", ["hangs", "writes garbage", "answers other types"])
def test_profiling(command, misbehave, does):
    misbehave(does, "profile", "float32")
    done = command("compare", MLP, "--policies", "float32", "--profile", "--rounds", 1, "--timeout", seconds(does),
                   "--json")  # fmt: skip
    assert done.code == 0
    assert done.json["rows"][0]["tensor_cores"]["reason"].startswith("the profiler failed: it")


def test_progress_that_makes_no_sense_is_passed_over(command, misbehave):
    misbehave("tells nonsense", "train", "float32")
    assert command("compare", MLP, "--policies", "float32", "--rounds", 1).code == 0


@pytest.mark.parametrize(("at", "does"), PROBES)
def test_tune(command, misbehave, does, at):
    misbehave(does, at, "mixed_bfloat16")
    done = command("tune", MLP, "--backend", "toy", "--policies", "mixed_bfloat16", "--rounds", 1, "--timeout",
                   seconds(does), "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["chosen"] == "float32"
    assert_told(done.json["policies"]["mixed_bfloat16"]["reason"], does)


def test_a_baseline_that_hangs_is_one_line(command, misbehave):
    misbehave("hangs", "begin", "float32")
    done = command("tune", MLP, "--backend", "toy", "--policies", "mixed_bfloat16", "--timeout", 4)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "does not train in float32 on toy: it said nothing new for 4 seconds" in done.err


@pytest.mark.parametrize("does", ["hangs", "answers a word"])
def test_parity(command, misbehave, monkeypatch, does):
    monkeypatch.setattr("unifiedamp.workloads.compare.parity.start_job", lambda _: Worker("fake_job:make"))
    misbehave(does, "begin", "float32")
    done = command("parity", MLP, "--backends", "a,b", "--policies", "float32", "--timeout", seconds(does),
                   "--json")  # fmt: skip
    assert done.code == 1
    for row in done.json:
        assert_told(row["failed"], does)


def test_what_a_job_has_started_ends_with_it(command, monkeypatch, tmp_path):
    """The group is ended, not the process alone."""
    (tmp_path / "starts.py").write_text(
        "import subprocess\n\ndef make(tell):\n    return lambda request: subprocess.Popen(['sleep', '600']).pid\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Worker("starts:make") as worker:
        child = worker.ask({}, timeout=60)
        assert Path(f"/proc/{child}").exists()
    status = Path(f"/proc/{child}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()
