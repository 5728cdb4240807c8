"""The benchmark of trainers runs, and compares a session with each trainer's own precision. Nothing here is timed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import probes

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trainers.py"
NAMES = {
    "Lightning": "lightning",
    "Fabric": "fabric",
    "Accelerate": "accelerate",
    "Transformers": "transformers",
}


@pytest.mark.skipif(not probes.HOSTS, reason="no trainer is installed")
def test_every_trainer_is_compared(tmp_path):
    command = [sys.executable, str(SCRIPT), "--measure", "torch", "--smoke", "--pairs", "2", "--seconds", "3"]
    command += ["--recipes", "mlp 3x256", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    (path,) = tmp_path.glob("trainers-torch*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = {(row["labels"]["trainer"], row["labels"]["by"]): row for row in rows}
    assert set(found) == {(name, by) for name in NAMES for by in ("its own", "unifiedamp")}
    for (name, by), row in found.items():
        if NAMES[name] not in probes.HOSTS:
            assert "is not installed" in row["failed"]
            continue
        assert not row["failed"], row["failed"]
        assert row["ratios"]["its own"][0] > 0, by
        # Both train the same model from the same weights.
        assert row["losses"] == pytest.approx(found[name, "its own"]["losses"], rel=0.05, abs=0.02)
