"""A pure half run with float32 master weights: its checkpoint holds the masters, here and in another framework."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
from workload_runs import run

import unifiedamp as ua
from examples import image_classifier
from unifiedamp.checkpoint.sealed_file import load_checkpoint

OPTIONS = {"model": "mlp", "learning_rate": 0.02, "amp": {"master_weights": True}}
KEPT = [name for name in ("torch", "tensorflow") if importlib.util.find_spec(name)]


def saved(done):
    return load_checkpoint(done.checkpoint_path).arrays


@pytest.mark.parametrize("framework", KEPT)
def test_a_resumed_run_loses_no_bits(tmp_path, framework):
    whole = run(tmp_path, framework, "float16", out="whole", epochs=2, **OPTIONS)
    run(tmp_path, framework, "float16", out="parts", epochs=1, **OPTIONS)
    parts = run(tmp_path, framework, "float16", out="parts", epochs=2, resume=True, **OPTIONS)
    assert parts.history.losses == whole.history.losses
    one, other = saved(whole), saved(parts)
    assert any(name.startswith("optimizer/") and one[name].any() for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    kernel = one["weights/dense1/kernel"]
    assert (kernel != kernel.astype(np.float16)).mean() > 0.9
    assert whole.history.epochs[-1]["scores"]["accuracy"] > 0.9


@pytest.mark.skipif(len(KEPT) < 2, reason="goes on in another framework")
@pytest.mark.parametrize(("first", "then"), [("torch", "tensorflow"), ("tensorflow", "torch")])
def test_another_framework_goes_on(tmp_path, first, then):
    half = run(tmp_path, first, "float16", epochs=1, **OPTIONS)
    kernel, before = saved(half)["weights/dense1/kernel"], half.history.epochs[-1]
    still = {**OPTIONS, "amp": {}, "learning_rate": 1e-9}
    with pytest.warns(ua.StateWarning, match="saved under policy 'float16'"):
        elsewhere = run(tmp_path, then, epochs=2, resume=True, **still)
    np.testing.assert_allclose(saved(elsewhere)["weights/dense1/kernel"], kernel, rtol=0, atol=1e-6)
    assert abs(elsewhere.history.epochs[-1]["scores"]["accuracy"] - before["scores"]["accuracy"]) < 0.01


def test_where_checkpoints_would_lose_them_they_are_refused_by_name(monkeypatch):
    """As for MXNet, which computes in float16 on GPUs alone."""
    kit = SimpleNamespace(export_weights=lambda model: {})
    monkeypatch.setattr(image_classifier.models, "for_backend", lambda name: kit)
    amp = SimpleNamespace(explain=lambda: [SimpleNamespace(setting="master_weights")])
    with pytest.raises(ua.ConfigError, match="no master weights for 'mxnet'"):
        image_classifier.ImageClassifier("mxnet").export_weights(amp, None)
