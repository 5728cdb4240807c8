"""The benchmarks run, compare what they say they compare, and write what the report reads. Nothing here is timed."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from unifiedamp.conformance.plugin import peers

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import report  # noqa: E402
import turns  # noqa: E402


def backends() -> list[str]:
    """Those whose native loop is written for the version that is installed."""
    names = [name for name in peers() if (BENCHMARKS / "native" / f"{name}_amp.py").exists()]
    # Keras 2 has another native loop; MXNet 2's own amp.init("bfloat16") fails with KeyError: 'cast'.
    written_for = {"tensorflow": ("keras", "3"), "mxnet": ("mxnet", "1")}
    for name, (distribution, major) in written_for.items():
        if name in names and version(distribution).split(".")[0] != major:
            names.remove(name)
    return names


class Recorder:
    """Loops that write down who ran, in place of a clock."""

    def __init__(self, monkeypatch, costs):
        self.log, self.now = [], 0.0
        monkeypatch.setattr(turns.time, "perf_counter", lambda: self.now)
        self.loops = [turns.Loop(self.step(name, cost), lambda: None) for name, cost in costs.items()]

    def step(self, name, cost):
        def run():
            self.log.append(name)
            self.now += cost

        return run


def test_turns_alternate_and_count_steps(monkeypatch):
    recorder = Recorder(monkeypatch, {"a": 0.002, "b": 0.004})
    row = turns.compare({"recipe": "r"}, *recorder.loops, pairs=4)
    assert row.steps_per_turn == round(turns.TURN_SECONDS / 0.004)
    measured = recorder.log[2 * (turns.WARM_UP + 3) :]
    n = row.steps_per_turn
    assert "".join(measured) == ("a" * n + "b" * n + "b" * n + "a" * n) * 2
    assert (row.first_ms, row.second_ms) == pytest.approx((2.0, 4.0))
    assert (row.ratio, row.low, row.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_interval_holds_the_median_and_narrows():
    values = [1.0 + 0.01 * (i % 7) for i in range(50)]
    low, high = turns.bootstrap(values)
    wide = turns.bootstrap([1.0 + 0.1 * (i % 7) for i in range(50)])
    assert low <= 1.03 <= high
    assert high - low < wide[1] - wide[0]


@pytest.mark.parametrize("name", backends())
def test_overhead_runs_and_is_reported(name, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), name, "--pairs", "2", "--recipes", "mlp 3x256"]
    command += ["--forms", "eager", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "120"})
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / f"overhead-{name}.json").read_text(encoding="utf-8"))
    assert [row["labels"]["loss scale"] for row in record["rows"]] == ["none", "dynamic"]
    assert all(row["pairs"] == 2 and row["low"] <= row["ratio"] <= row["high"] for row in record["rows"])
    assert record["command"].startswith(f"python benchmarks/overhead.py {name} ")
    assert {"cpu", "cores", "load_before"} <= set(record["hardware"])
    page = report.page(tmp_path)
    assert f"### {name}: unifiedamp over native" in page
    assert f"{record['rows'][0]['ratio']:.3f}" in page


@pytest.mark.parametrize("name", backends())
def test_native_and_layered_loops_train_alike(name):
    """Both sides do the same work: from the same weights, their losses after some steps agree within bfloat16."""
    command = [sys.executable, "-c", LOSSES.format(folder=str(BENCHMARKS), name=name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    ours, theirs = json.loads(run.stdout.rpartition("losses:")[2])
    assert ours[-1] < 0.7 * ours[0]
    assert ours == pytest.approx(theirs, rel=0.05)


LOSSES = """
import importlib, json, sys
sys.path.insert(0, {folder!r})
import numpy as np
import unifiedamp as ua
from recipes import RECIPES, Parts, layered

amp = ua.Amp({name!r}, "mixed_bfloat16", loss_scale="dynamic")
parts = Parts({name!r}, RECIPES["mlp 3x256"])
ours = layered(amp, parts, compiled=False)
native = importlib.import_module("native.{name}_amp")
with native.scope():
    model = parts.model()
    step = native.train_step(model, parts.optimizer(model), parts.loss_fn, True, False)
x, y = native.tensor(parts.images), native.tensor(parts.labels)
number = lambda loss: float(np.ravel(amp.to_numpy(loss))[0])
losses = [], []
for _ in range(30):
    losses[0].append(number(ours()))
    with native.around():
        losses[1].append(number(step(x, y)))
print("losses:" + json.dumps(losses))
"""
