"""The benchmarks of several ranks and replicas run, on two gloo processes and on two CPU devices."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from unifiedamp.conformance.plugin import peers

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def measured(script, *options, out):
    """Run a script on tiny models; return the rows of its record."""
    command = [sys.executable, str(BENCHMARKS / script), "--smoke", *options, "--rounds", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.json")
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def check_pair(native, ours):
    """Both were measured, and train alike."""
    assert ours["failed"] == native["failed"] == ""
    assert ours["losses"] == pytest.approx(native["losses"], rel=0.05, abs=0.05)
    assert ours["ratios"]["native AMP"][0] > 0


@pytest.mark.skipif("torch" not in peers(), reason="torch is not installed")
def test_ranks_train_as_the_native_loop_does(tmp_path):
    forms = ("native AMP", "ours off", "ours max, float8_all_gather")
    rows = measured("distributed.py", "--rows", "2", "6", "10", "--forms", *forms, out=tmp_path)
    assert [row["labels"]["wrapper"] for row in rows] == ["DDP", "DDP", *["FSDP2"] * 5]
    for native, ours in ((0, 1), (2, 3), (4, 5), (4, 6)):
        check_pair(rows[native], rows[ours])


@pytest.mark.skipif("tensorflow" not in peers(), reason="TensorFlow is not installed")
def test_replicas_train_as_the_native_loop_does(tmp_path):
    if version("keras").startswith("2"):
        pytest.skip("the native loop is written for Keras 3")
    forms = ("--forms", "native AMP", "ours max")
    check_pair(*measured("replicas.py", "--recipes", "conv 28x28", *forms, "--turn", "0.01", out=tmp_path))
