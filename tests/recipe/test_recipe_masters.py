"""A pure half run with float32 master weights: its checkpoint holds the masters, here and in another framework."""

import importlib.util

import numpy as np
import pytest
from recipe_runs import run

import unifiedamp as ua
from unifiedamp.checkpoint_file import load_checkpoint

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the recipe keeps torch's alone")
OPTIONS = {"model": "mlp", "learning_rate": 0.02, "amp": {"master_weights": True}}


def saved(done):
    return load_checkpoint(done.checkpoint_path).arrays


def test_a_resumed_run_loses_no_bits(tmp_path):
    whole = run(tmp_path, "torch", "float16", out="whole", epochs=2, **OPTIONS)
    run(tmp_path, "torch", "float16", out="parts", epochs=1, **OPTIONS)
    parts = run(tmp_path, "torch", "float16", out="parts", epochs=2, resume=True, **OPTIONS)
    assert parts.history.losses == whole.history.losses
    one, other = saved(whole), saved(parts)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    kernel = one["weights/dense1/kernel"]
    assert (kernel != kernel.astype(np.float16)).mean() > 0.9
    assert whole.history.epochs[-1]["accuracy"] > 0.9


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="goes on in TensorFlow")
def test_another_framework_goes_on(tmp_path):
    half = run(tmp_path, "torch", "float16", epochs=1, **OPTIONS)
    kernel, before = saved(half)["weights/dense1/kernel"], half.history.epochs[-1]
    still = {**OPTIONS, "amp": {}, "learning_rate": 1e-9}
    with pytest.warns(ua.StateWarning, match="saved under policy 'float16'"):
        elsewhere = run(tmp_path, "tensorflow", epochs=2, resume=True, **still)
    np.testing.assert_allclose(saved(elsewhere)["weights/dense1/kernel"], kernel, rtol=0, atol=1e-6)
    assert abs(elsewhere.history.epochs[-1]["accuracy"] - before["accuracy"]) < 0.01


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="asks for TensorFlow")
def test_where_checkpoints_would_lose_them_they_are_refused_by_name(tmp_path):
    with pytest.raises(ua.ConfigError, match="no master weights for 'tensorflow'"):
        run(tmp_path, "tensorflow", "float16", **OPTIONS)
