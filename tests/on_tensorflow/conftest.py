"""These tests need TensorFlow."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import forked
import pytest

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def replica_results(tmp_path_factory):
    """All cases on two replicas, run once in a separate process: logical devices must be made before TensorFlow starts.

    Case → form → what it returned.
    """
    path, cases = tmp_path_factory.mktemp("replicas") / "results.json", Path(__file__).with_name("replica_cases.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = forked.run([sys.executable, str(cases), str(path)], env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def worker_results():
    """What two workers of a ``MultiWorkerMirroredStrategy`` returned: how they trained, and what they recorded."""
    from two_workers import WORKER, on_two_workers

    return on_two_workers(WORKER)
