"""``train --resume`` from a whole file with changed values: one line, exit code 2, and nothing is changed before it."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
from effort import FUZZ
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import ODD, mutated
from workload_runs import finish, run, start, write_config
from workload_runs import settings as read

import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import Checkpoint, load_checkpoint, save_checkpoint
from unifiedamp.config import plugins
from unifiedamp.workloads.training import run as runs
from unifiedamp.workloads.training.loop import make_run

OPTIONS = {"model": "mlp", "samples": 192, "amp": {"loss_scale": {"kind": "dynamic", "initial_scale": 8.0}}}
EPOCHS = 2


class Resumed:
    """A run that is begun again and again, from whatever ``saved`` is."""

    def __init__(self, folder, backend, monkeypatch):
        made = run(folder, backend, epochs=1, checkpoint_every=1, **OPTIONS)
        self.path = made.checkpoint_path
        self.good = load_checkpoint(self.path)
        self.fresh = make_run(read(folder, backend, epochs=EPOCHS, **OPTIONS))
        self.batches = self.fresh.window_count()
        self.saved = self.good
        monkeypatch.setattr(runs, "load_checkpoint", lambda path: self.saved)

    def begin(self, meta, arrays=None):
        self.saved = Checkpoint(meta, self.good.arrays if arrays is None else arrays)
        self.fresh.begin(True, False)

    def looks(self):
        weights = {name: value.copy() for name, value in self.fresh.state.weights().items()}
        momentum = {name: value.copy() for name, value in self.fresh.state.optimizer().items()}
        place = (self.fresh.epoch, self.fresh.batch, copy.deepcopy(self.fresh.history))
        return weights, momentum, self.fresh.amp.state_dict(), place

    def assert_unchanged(self, before):
        weights, momentum, *rest = self.looks()
        for found, known in ((weights, before[0]), (momentum, before[1])):
            for name, value in known.items():
                np.testing.assert_array_equal(found[name], value)
        assert rest == list(before[2:])


@pytest.fixture
def resumed(backend, tmp_path, monkeypatch):
    return Resumed(tmp_path, backend, monkeypatch)


@pytest.fixture
def resumed_anywhere(tmp_path, monkeypatch):
    """The metadata is read before any framework sees it, so that one of them is enough for many inputs."""
    first = next(name for name in ("torch", "mxnet", "tensorflow") if plugins.is_installed(name))
    return Resumed(tmp_path, first, monkeypatch)


def test_the_checkpoint_that_is_changed_is_valid(resumed):
    resumed.begin(resumed.good.meta)
    assert (resumed.fresh.epoch, resumed.fresh.batch) == (1, 0)
    assert resumed.fresh.amp.applied_steps == 3


WRONG = {
    ("run",): (1, 3, None, "2", [2], True),
    ("workload",): (None, 1, ["x"]),
    ("held",): (None, {}, {"weights": "", "optimizer": "elsewhere"}),
    ("epoch",): (-1, True, 0.5, "1", None, math.nan, 2, 10**30),
    ("batch",): (-1, True, "0", None, 4, 10**30),
    ("window",): (0, None, "1"),
    ("finished",): (None, 1, "yes"),
    ("epochs",): ([], {}, None, [1], "x", [[]]),
    ("epochs", 0, "loss"): ("1", math.nan, []),
    ("epochs", 0, "scores"): (None, [], "1"),
    ("epochs", 0, "scores", "accuracy"): (2.0, "1", []),
    ("epochs", 0, "loss_scale"): (0.0, -1.0, None),
    ("epochs", 0, "epoch"): (1, -1, True),
    ("settings",): (None, [], "x", {}),
    ("settings", "seed"): (True, "0", None, 1),
    ("settings", "batch_size"): (0, 64.5, None),
    ("amp",): (None, [], {}, "x"),
    ("amp", "state"): (None, {}, []),
    ("amp", "state", "scale"): (0.0, math.nan, True, "8", 1e39),
    ("amp", "state", "applied_steps"): (-1, 0.5, 2**63, "3"),
    ("amp", "policy"): (None, 3, "no such policy"),
    ("amp", "loss_scale"): (None, {"kind": ["x"]}, {"kind": "dynamic", "growth_factor": True}),
}


def changed(meta, path, value):
    meta = copy.deepcopy(meta)
    inside = meta
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return meta


def test_a_wrong_value_is_refused_before_anything_changes(resumed):
    before = resumed.looks()
    for path, values in WRONG.items():
        wrong = [changed(resumed.good.meta, path, value) for value in values]
        if len(path) == 1:
            wrong.append({key: value for key, value in resumed.good.meta.items() if key != path[0]})
        for meta in wrong:
            with pytest.raises(ua.CheckpointError):
                resumed.begin(meta)
            resumed.assert_unchanged(before)


def test_wrong_arrays_are_refused_before_anything_changes(resumed):
    before, arrays = resumed.looks(), resumed.good.arrays
    for name in arrays:
        value = arrays[name]
        shorter = [] if name.startswith("history/") else [value[:-1]]  # a run may have looked less often
        for other in (np.zeros((3, 3, 3)), value.astype("S4"), np.array(value != 0), *shorter):
            with pytest.raises(ua.CheckpointError):
                resumed.begin(resumed.good.meta, {**arrays, name: other})
        with pytest.raises(ua.CheckpointError):
            resumed.begin(resumed.good.meta, {key: array for key, array in arrays.items() if key != name})
        with pytest.raises(ua.CheckpointError):
            resumed.begin(resumed.good.meta, {**arrays, "weights/extra": np.zeros(1)})
    resumed.assert_unchanged(before)


def json_only(value):
    return isinstance(value, (type(None), bool, int, float, str, list, dict))


@settings(
    max_examples=FUZZ, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_mutated_metadata_is_taken_over_or_refused(resumed_anywhere, data):
    resumed = resumed_anywhere
    meta = data.draw(mutated(resumed.good.meta, list(filter(json_only, ODD))))
    if not isinstance(meta, dict):
        return
    before = resumed.looks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StateWarning)
        try:
            resumed.begin(meta)
        except ua.CheckpointError:
            resumed.assert_unchanged(before)
            return
    assert resumed.fresh.epoch == len(resumed.fresh.history.epochs)
    assert 0 <= resumed.fresh.batch <= resumed.batches


def test_the_command_says_it_in_one_line(backend, tmp_path):
    run(tmp_path, backend, epochs=1, **OPTIONS)
    path = tmp_path / "run" / "checkpoint.npz"
    good = load_checkpoint(path)
    save_checkpoint(path, {**good.meta, "epoch": "\x1b[31mone"}, good.arrays)
    altered = path.read_bytes()
    config = write_config(tmp_path, {"backend": backend, "policy": "float32"}, epochs=2, model="mlp", samples=192)
    code, out, err = finish(start("train", config, "--out", tmp_path / "run", "--resume", cwd=tmp_path))
    assert (code, out) == (2, "")
    ours = [line for line in err.splitlines() if not line.startswith("[")]  # MXNet 2 names its storage manager
    assert len(ours) == 1
    assert ours[0].startswith(f"unifiedamp: {path} was altered, or not written by `unifiedamp train`: epoch: ")
    assert "\x1b" not in err
    assert path.read_bytes() == altered
