"""The benchmark of several ranks runs, on two gloo processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unifiedamp.conformance.plugin import peers

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.skipif("torch" not in peers(), reason="torch is not installed")
def test_ranks_train_as_the_native_loop_does(tmp_path):
    options = [
        "--smoke",
        "--rows",
        "2",
        "6",
        "--forms",
        "native AMP",
        "ours off",
        "--rounds",
        "2",
        "--out",
        str(tmp_path),
    ]
    command = [sys.executable, str(BENCHMARKS / "distributed.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "distributed-torch.json").read_text(encoding="utf-8"))
    assert [row["labels"]["wrapper"] for row in found["rows"]] == ["DDP", "DDP", "FSDP2", "FSDP2"]
    for native, ours in (found["rows"][:2], found["rows"][2:]):
        assert ours["failed"] == native["failed"] == ""
        assert ours["losses"] == pytest.approx(native["losses"], rel=0.05, abs=0.05)
        assert ours["ratios"]["native AMP"][0] > 0
