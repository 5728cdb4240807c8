"""Workers of a distributed kvstore decide together, by overflows and by ``amp.skip_if``: processes on this host."""

import contextlib
import json
import pickle
from pathlib import Path

import pytest
from clusters import of_mxnet, run_together
from dist_workers import KIND, RECORDED, case, prepared, record

import unifiedamp as ua
from unifiedamp.conformance.suite.test_ranks import follows_the_oracle
from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import collect

SCRIPT = Path(__file__).with_name("dist_workers.py")


def run_workers(folder, form=""):
    """Run the workers of ``dist_workers.py``; all processes have ended then."""
    environments = [{**each, "RESULTS": str(folder), "FORM": form} for each in of_mxnet()]
    run_together([str(SCRIPT)], environments, 2)


@pytest.fixture(scope="module")
def conditions_and_records(tmp_path_factory):
    """What became of the steps of each worker, and what it recorded."""
    folder = tmp_path_factory.mktemp("workers")
    run_workers(folder)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


def test_a_condition_on_any_worker_drops_the_step_on_all(conditions_and_records):
    (first, _), (second, _) = conditions_and_records
    assert first == second
    assert first == [
        ["applied", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["applied", 0.0, 2],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    """The same steps on one context."""
    with contextlib.closing(ua.Amp("mxnet", "float32", loss_scale=8.0, device="cpu")) as amp:
        return read(record(amp, *prepared(amp, kvstore=None), [0, 1]))


def read(records):
    return collect(json.dumps(each) for each in records)


PLANTED = {
    "plain": None,
    "data": (2, "data", "", "on rank 1"),
    "gradient": (2, "backward", "weight", "on rank 1"),
    "overflow": (2, "reduction", "weight", ""),
}


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_workers_are_compared(conditions_and_records, alone, case):
    """With one another, and with one context; the first worker writes."""
    second, first = sorted((recorded for _, recorded in conditions_and_records), key=lambda each: len(each["plain"]))
    run, planted = read(first[case]), PLANTED[case]
    assert not second[case]
    for found in (difference(read(first["plain"]), run), difference(alone, run)):
        assert (found.first and (found.first.step, found.first.part, found.first.name)) == (planted and planted[:3])
        assert found.steps == 3
    if planted:
        assert difference(read(first["plain"]), run).first.note == planted[3]
    seen, named = run.steps[1], {"during": "reduction", "ranks": [], "name": "weight"}
    assert seen["ranks"]["first"] == (named if case == "overflow" else None)
    assert seen["applied"] == (case != "overflow")


def test_a_worker_that_does_not_record_is_missing(conditions_and_records):
    """Nothing waits for it."""
    written = max((recorded for _, recorded in conditions_and_records), key=lambda each: len(each["plain"]))
    run = read(written["by one alone"])
    assert [(step["step"], step["ranks"]["missing"]) for step in run.steps] == [(step, [1]) for step in (4, 5, 6)]
    assert difference(run, run).first is None


def test_workers_without_shapes_are_not_recorded_yet():
    """Nothing is connected before, so no scheduler is needed here."""
    with contextlib.closing(ua.Amp("mxnet", "float32", device="cpu")) as amp:
        prepared(amp, in_units=0)
        with pytest.raises(ua.StepOrderError, match=r"amp.record: the workers of kvstore 'dist_sync'.*call the model"):
            amp.record([].append)


def test_a_state_that_one_worker_loads_is_refused_on_all(tmp_path):
    """Before the step that would be applied with two counts; where both load, they go on."""
    run_workers(tmp_path, "load")
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    for worker in (first, second):
        assert "the number of good steps in a row differs between worker 0 and worker 1" in worker[1][0]
    assert [weight for _, weight, _ in first] == [weight for _, weight, _ in second] == [0.5, 0.5, 0.0, -0.5]
    assert [said for said, *_ in first[2:] + second[2:]] == [""] * 4
    assert [good for *_, good in first[2:]] == [good for *_, good in second[2:]] == [6, 7]


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_workers_follow_the_oracle_of_ranks(tmp_path, form):
    """One scale, one decision and the same weights on both, in float64 as on one; see ``case``."""
    run_workers(tmp_path, form)
    traces = [trace for n in range(2) for trace in pickle.loads((tmp_path / f"{n}.pickle").read_bytes())]
    follows_the_oracle(traces, case(), KIND, 2, case().scale.initial_scale)
