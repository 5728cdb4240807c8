"""A workload on workers of ``TF_CONFIG`` or ``launch.py`` trains as in one process: losses, loss scale, checkpoints."""

import importlib
import json
from pathlib import Path

import pytest
from worker_runs import DIFFERENT, cases_of, on_differing_worker, on_loading_worker, on_worker, run, run_case

from unifiedamp.config import plugins
from unifiedamp.output.signals import Terminated

WORKERS = {
    "tensorflow": "unifiedamp_tensorflow.conformance.replicas",
    "mxnet": "unifiedamp_mxnet.conformance.cluster",
}
REFUSED = ("stopped", "other order", "ends early", "no shape")
SAME = [(backend, case) for backend in WORKERS for case in cases_of(backend) if case not in REFUSED]


@pytest.fixture(scope="module", params=WORKERS)
def together(request, tmp_path_factory):
    backend = request.param
    if not plugins.is_installed(backend):
        pytest.skip(f"{backend} is not installed")
    folder = tmp_path_factory.mktemp(f"together-{backend}")
    processes = importlib.import_module(WORKERS[backend]).workers(2)
    answers = processes.run(on_worker, backend, str(folder))
    return backend, folder, [dict(zip(cases_of(backend), each, strict=True)) for each in answers]


@pytest.mark.parametrize(("together", "case"), SAME, indirect=["together"])
def test_workers_train_as_one_process(together, tmp_path, case):
    backend, folder, answers = together
    alone = run_case(backend, tmp_path, case)
    for each in (alone, *(answer[case] for answer in answers)):
        assert "losses" in each, each
        assert each["losses"] == pytest.approx(alone["losses"], rel=2e-5, nan_ok=True)
        assert each["state"] == alone["state"]
        scores = [row["scores"]["score"] for row in each["rows"]]
        assert scores == pytest.approx([row["scores"]["score"] for row in alone["rows"]], rel=2e-5)
    assert alone["state"]["skipped_steps"] == (2 if case == "overflow on one worker" else 0)
    assert len(json.loads(Path(folder, case, "log.json").read_text())["losses"]) == len(alone["losses"])


def test_a_signal_to_one_worker_stops_all_and_the_run_goes_on_alone(together, tmp_path):
    backend, folder, answers = together
    assert [answer["stopped"].get("error") for answer in answers] == [f"{Terminated.__name__}: "] * 2
    rest = run(backend, folder / "stopped", train_table={"epochs": 4}, given={"fault": "stopped"}, resume=True)
    alone = run(backend, tmp_path / "alone", train_table={"epochs": 4})
    assert "losses" in rest, rest
    assert rest["losses"] == pytest.approx(alone["losses"], rel=2e-5)


def test_batches_that_differ_are_refused_on_each_worker(together):
    _, _, answers = together
    for answer in answers:
        assert "batches(0) yields other samples on rank 1 than on rank 0" in answer["other order"]["error"]
        assert "batches(1) yields another number of batches on rank 1 than on rank 0" in answer["ends early"]["error"]


@pytest.mark.parametrize("together", ["mxnet"], indirect=True)
def test_gluon_parameters_without_a_shape_are_refused_on_each_worker(together):
    _, _, answers = together
    for answer in answers:
        assert "have no shape or values before the first batch" in answer["no shape"]["error"]


@pytest.mark.parametrize("of", WORKERS)
def test_settings_that_differ_are_refused_on_each_worker(of, tmp_path):
    if not plugins.is_installed(of):
        pytest.skip(f"{of} is not installed")
    processes = importlib.import_module(WORKERS[of]).workers(2)
    for answers in processes.run(on_differing_worker, of, str(tmp_path)):
        *refused, alike = answers
        for name, each in zip(DIFFERENT, refused, strict=True):
            assert each.get("error", "trained").startswith("PrepareError: amp."), name
            assert f"the same settings, and {name} differs between worker 0 and worker 1" in each["error"]
        assert "losses" in alike, alike


@pytest.mark.parametrize("of", WORKERS)
def test_a_state_that_one_worker_alone_loads_is_refused_on_each(of):
    if not plugins.is_installed(of):
        pytest.skip(f"{of} is not installed")
    for answers in importlib.import_module(WORKERS[of]).workers(2).run(on_loading_worker, of):
        for said in answers:
            assert "amp.step: workers that train together need the same" in said
            assert "loss scale" in said
