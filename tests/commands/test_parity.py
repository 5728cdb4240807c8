"""``unifiedamp parity``: backends do not diverge in float32, and a planted fault is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_runs import MLP, installed

FAULTY = """
from unifiedamp.workloads.compare import job

def make(tell):
    handle = job.make(tell)
    def wrapped(request):
        answer = handle(request)
        if request["do"] == "begin" and request["amp"]["backend"] == "torch":
            weight = [p for p in wrapped.job._run.model.parameters() if p.dim() == 2][1]
            weight.register_hook(lambda gradient: gradient * {factor})
        return answer
    class Kept(job.Job):
        def __init__(self, *args):
            super().__init__(*args)
            wrapped.job = self
    job.Job, before = Kept, job.Job
    try:
        handle = job.make(tell)
    finally:
        job.Job = before
    return wrapped
"""

needs_two = pytest.mark.skipif(len(installed()) < 2, reason="one framework has no other to be compared with")
needs_torch = pytest.mark.skipif("torch" not in installed() or len(installed()) < 2, reason="plants its fault in torch")


@needs_two
def test_backends_do_not_part_in_float32(command):
    done = command("parity", MLP, "--policies", "float32", "--steps", 3, "--compile",
                   "off", "--out", "out", "--json")  # fmt: skip
    assert done.code == 0, done.out
    pairs = len(installed()) * (len(installed()) - 1) // 2
    assert len(done.json) == pairs
    for row in done.json:
        assert row["diverged"] is None
        assert row["dtype"] == "float32"
        # Near enough to be computed on, and by different libraries.
        assert 0 < row["closest"]["distance"] < row["closest"]["allowed"] < 1e-3
    assert json.loads((Path("out") / "parity.json").read_text()) == done.json


@needs_torch
@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_planted_fault_is_named_by_step_and_layer(command, monkeypatch, tmp_path, factor):
    """torch's gradient of the second dense layer is 1 % off: found there in step 1, before anything it spoils."""
    (tmp_path / "faulty.py").write_text(FAULTY.replace("{factor}", str(factor)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("unifiedamp.workloads.compare.run.JOB", "faulty:make")
    other = next(name for name in installed() if name != "torch")
    done = command("parity", MLP, "--backends", f"torch,{other}", "--policies", "float32",
                   "--steps", 2, "--compile", "off", "--json")  # fmt: skip
    assert done.code == 1
    (row,) = done.json
    diverged = row["diverged"]
    assert (diverged["step"], diverged["layer"], diverged["what"]) == (1, "dense2.kernel", "gradient")
    assert diverged["distance"] == pytest.approx(abs(1 - factor) / max(1.0, factor), rel=1e-3)
