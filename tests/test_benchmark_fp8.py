"""The float8 benchmark at its smallest: it runs anywhere, and float8 learns what bfloat16 learns."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "fp8.py"


@pytest.mark.parametrize(("model", "recipe"), [("gpt", "tensorwise"), ("experts", "rowwise")])
def test_a_small_transformer_learns_as_well(tmp_path, model, recipe):
    if model == "experts" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("torch.nn.functional.grouped_mm came with torch 2.10")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--smoke", "--loss-steps", "80", "--recipes", recipe]
    command += ["--model", model, "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "fp8-torch.json").read_text(encoding="utf-8"))
    assert record["columns"] == ["mixed_float8", "mixed_bfloat16"]
    (row,) = record["rows"]
    assert row["labels"]["amp.compile"] == "off"
    low, mixed, ratio = (float(part) for part in row["labels"]["loss after 80 steps"].replace("=", "/").split("/"))
    assert math.log(4) < mixed < 0.8 * math.log(32)
    assert ratio == pytest.approx(low / mixed, rel=1e-3)
    assert ratio < 1.02


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_gw_hp"])
def test_torchao_trains_the_same_model(tmp_path, recipe):
    pytest.importorskip("torchao")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--smoke", "--loss-steps", "40", "--beside", "torchao"]
    command += ["--model", "llama", "--recipes", recipe, "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "fp8-torchao.json").read_text(encoding="utf-8"))
    assert record["columns"] == ["mixed_float8", "torchao"]
    (row,) = record["rows"]
    ours, theirs, _ = (float(part) for part in row["labels"]["loss after 40 steps"].replace("=", "/").split("/"))
    assert ours == pytest.approx(theirs, rel=0.01)


def test_recipes_that_torchao_lacks_are_refused(tmp_path):
    command = [sys.executable, str(SCRIPT), "--smoke", "--beside", "torchao", "--recipes", "delayed"]
    run = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 2
    assert "torchao has the recipes tensorwise, rowwise, rowwise_gw_hp" in run.stderr
