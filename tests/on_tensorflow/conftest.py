"""These tests need TensorFlow."""

import importlib.util

import pytest

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def replica_results(tmp_path_factory):
    """Case → form → what it returned on two replicas, in a separate process."""
    from replica_process import ReplicaCases

    cases = ReplicaCases(tmp_path_factory.mktemp("replicas"))
    yield cases
    cases.close()


@pytest.fixture(scope="session")
def worker_results():
    """What two workers of a ``MultiWorkerMirroredStrategy`` returned: how they trained, and what they recorded."""
    from two_workers import WORKER, on_two_workers

    return on_two_workers(WORKER)
