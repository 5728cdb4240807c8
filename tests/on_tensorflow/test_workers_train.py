"""A workload on the workers of ``TF_CONFIG`` trains as in one process: the same losses, loss scale and checkpoints."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from worker_runs import CASES, on_worker, run, run_case

from unifiedamp.output.signals import Terminated
from unifiedamp_tensorflow.conformance.replicas import workers

STOPPED = ("stopped", "other order")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    return folder, [dict(zip(CASES, answers, strict=True)) for answers in workers(2).run(on_worker, str(folder))]


@pytest.mark.parametrize("case", [case for case in CASES if case not in STOPPED])
def test_workers_train_as_one_process(together, tmp_path, case):
    folder, answers = together
    alone = run_case(tmp_path, case)
    for each in (alone, *(answer[case] for answer in answers)):
        assert "losses" in each, each
        assert each["losses"] == pytest.approx(alone["losses"], rel=2e-5, nan_ok=True)
        assert each["state"] == alone["state"]
        scores = [row["scores"]["score"] for row in each["rows"]]
        assert scores == pytest.approx([row["scores"]["score"] for row in alone["rows"]], rel=2e-5)
    assert alone["state"]["skipped_steps"] == (2 if case == "overflow on one worker" else 0)
    assert len(json.loads(Path(folder, case, "log.json").read_text())["losses"]) == len(alone["losses"])


def test_a_signal_to_one_worker_stops_all_and_the_run_goes_on_alone(together, tmp_path):
    folder, answers = together
    assert [answer["stopped"].get("error") for answer in answers] == [f"{Terminated.__name__}: "] * 2
    rest = run(folder / "stopped", train_table={"epochs": 4}, given={"fault": "stopped"}, resume=True)
    alone = run(tmp_path / "alone", train_table={"epochs": 4})
    assert "losses" in rest, rest
    assert rest["losses"] == pytest.approx(alone["losses"], rel=2e-5)


def test_batches_that_differ_are_refused_on_each_worker(together):
    _, answers = together
    for answer in answers:
        assert "batches(0) yields other samples on rank 1 than on rank 0" in answer["other order"]["error"]
