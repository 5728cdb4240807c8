"""The kit must kill every mutant, by a test whose name says why."""

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from mutants.every import MUTANTS

TESTS = str(Path(__file__).parent)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_kit_kills(name, tmp_path):
    _, killed_by = MUTANTS[name]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.registered", "-p", "no:cacheprovider"]
    command += ["--pyargs", "unifiedamp.conformance", "--amp-backend", "mutant"]
    command += ["--amp-json", str(report), "-k", f"{killed_by} and not (torch or tensorflow or mxnet or jax)"]
    environment = {**os.environ, "UNIFIEDAMP_MUTANT": name, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    run = forked.run(command, forked.KitPopen, env=environment, cwd=tmp_path, timeout=120)
    assert run.returncode == 1, run.stdout + run.stderr
    failed = {
        test.partition("::")[2].partition("[")[0]
        for test in json.loads(report.read_text())["backends"]["mutant"]["failed"]
    }
    assert killed_by in failed, f"survived {killed_by}; failed: {sorted(failed)}"
