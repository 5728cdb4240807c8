"""Turns of a measured run whose calls run several steps each, against a clock that the test moves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toy.registered  # noqa: F401

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp.measured import VARIABLE, steps
from unifiedamp.measured.request import LOG, RunRequest, permit
from unifiedamp.workloads.compare.rows import SCRIPT, Row, Task
from unifiedamp.workloads.scripts.results import add_turn


@pytest.fixture
def clock(monkeypatch):
    """Return a list of the present time, which the measure reads."""
    now = [100.0]
    monkeypatch.setattr(steps.time, "perf_counter", lambda: now[0])
    return now


def measured(folder, monkeypatch, **request):
    """Return what follows the steps of a session under a measured run."""
    RunRequest("steps", **request).write(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    harness, amp = load_harness("toy"), ua.Amp("toy", "float32")
    model = harness.mlp([(np.zeros((2, 2), np.float32), np.zeros(2, np.float32))])
    amp.prepare(model, harness.sgd([model], 0.1))
    return amp._loop.measure


def run_calls(measure, clock, sizes, seconds):
    """Run calls of some steps each until the run ends; return how many were run."""
    for call, (size, took) in enumerate(zip(sizes, seconds, strict=True), 1):
        measure.before_step()
        clock[0] += took
        try:
            for left in reversed(range(size)):
                measure.native_step(lambda call=call: float(call), more=left > 0)
        except SystemExit:
            return call
    raise AssertionError("the run did not end")


def turns(folder):
    notes = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    assert notes[-1]["kind"] == "end"
    return [note for note in notes if note["kind"] == "turn"]


def test_a_turn_ends_with_a_call(tmp_path, monkeypatch, clock):
    """Calls of 50 steps: the first takes 5 s and compiles, the others 1 s."""
    measure = measured(tmp_path, monkeypatch, turns=(10, 20, 30, 300))
    assert run_calls(measure, clock, [50] * 9, [5.0, *[1.0] * 8]) == 6
    first, last = turns(tmp_path)
    assert (first["first"], first["last"]) == (1, 150), "three calls: two compile or settle, and are known by the third"
    assert first["times"] == pytest.approx([5.0 / 50] * 50 + [1.0 / 50] * 100)
    assert (last["first"], last["last"]) == (151, 300)
    assert (last["seconds"], last["timed"]) == (pytest.approx(2.0), 100), "the first call of a turn settles"
    assert last["losses"] == [4.0] * 50 + [5.0] * 50 + [6.0] * 50
    row = Row(Task("script", "float32", "", SCRIPT), unit="steps")
    for turn in (first, last):
        add_turn(row, turn)
    assert row.rates == pytest.approx([50.0])
    assert row.compile_seconds == pytest.approx(4.0)


def test_turns_that_are_permitted_late(tmp_path, monkeypatch, clock):
    """The command permits turns that a call has passed already: each lasts a call."""
    for number, until, last in ((1, 20, False), (2, 30, False), (3, 40, True)):
        permit(tmp_path, number, until, last)
    measure = measured(tmp_path, monkeypatch, turns=(10,), waits=True)
    assert run_calls(measure, clock, [50] * 9, [2.0] * 9) == 6
    found = turns(tmp_path)
    assert [turn["number"] for turn in found] == [0, 1, 2, 3]
    assert [(turn["timed"], turn["seconds"]) for turn in found[1:]] == [(50, pytest.approx(2.0))] * 3


def test_calls_of_one_step_are_as_before(tmp_path, monkeypatch, clock):
    measure = measured(tmp_path, monkeypatch, turns=(2, 5))
    assert run_calls(measure, clock, [1] * 9, [3.0, *[0.5] * 8]) == 5
    first, last = turns(tmp_path)
    assert (first["last"], first["times"]) == (2, [3.0, 0.5])
    assert (last["last"], last["timed"], last["seconds"]) == (5, 2, pytest.approx(1.0))


def test_the_last_turn_is_passed_in_the_first_call(tmp_path, monkeypatch, clock):
    measure = measured(tmp_path, monkeypatch, turns=(10, 20))
    assert run_calls(measure, clock, [64] * 9, [1.0] * 9) == 1
    assert [turn["last"] for turn in turns(tmp_path)] == [64]
