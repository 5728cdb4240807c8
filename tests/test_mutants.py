"""The kit must kill every mutant, by a test whose name says why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.every import MUTANTS

TESTS = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Mutant → names of the tests that failed on it."""
    folder = tmp_path_factory.mktemp("mutants")
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mutants.trials", "report.json"]
    run = subprocess.run(command, env=environment, cwd=folder, timeout=300, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((folder / "report.json").read_text())


@pytest.mark.xdist_group("mutants")
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_kit_kills(name, failed):
    _, killed_by = MUTANTS[name]
    assert killed_by in failed[name], f"{name} survived {killed_by}"
