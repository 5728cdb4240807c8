"""Workers of a distributed kvstore decide together, by overflows and by ``amp.skip_if``: processes on this host."""

import json
import pickle
from pathlib import Path

import pytest
from clusters import of_mxnet, run_together
from dist_workers import KIND, case

from unifiedamp.conformance.suite.test_ranks import follows_the_oracle

SCRIPT = Path(__file__).with_name("dist_workers.py")


def run_workers(folder, form=""):
    """Run the workers of ``dist_workers.py``; all processes have ended then."""
    environments = [{**each, "RESULTS": str(folder), "FORM": form} for each in of_mxnet()]
    run_together([str(SCRIPT)], environments, 2)


def test_a_condition_on_any_worker_drops_the_step_on_all(tmp_path):
    run_workers(tmp_path)
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert first == second
    assert first == [
        ["applied", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["applied", 0.0, 2],
    ]  # fmt: skip


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
