"""A deep copy of a prepared model, such as a teacher or a target network, is a model for itself under the policy."""

import copy

import numpy as np
import pytest

from unifiedamp.conformance.driver import session


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, numpy 2
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_bfloat16;layers=*:float32"])
def test_a_deep_copy_computes_with_its_weights(harness, policy):
    """It stands still while the original trains: ``w * x + b`` goes from 1 to 0.5, and the copy's stays 1."""
    amp = session(harness, policy=policy)
    with amp.scope():
        model = harness.mlp([(np.float32([[1.0]]), np.float32([0.0]))])
        optimizer = harness.sgd([model], 0.125)
    model, optimizer = amp.prepare(model, optimizer)
    x, y = amp.to_native(np.float32([[1.0]])), amp.to_native(np.float32([[0.0]]))

    def output(model):
        with amp.autocast():
            return float(np.ravel(amp.to_numpy(model(x)))[0])

    other = copy.deepcopy(model)
    amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
    assert amp.step(optimizer).applied
    assert (output(model), output(other)) == (0.5, 1.0)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, numpy 2
@pytest.mark.parametrize("kept", [None, "layer0", "*"])
def test_a_deep_copy_rounds_as_the_model_does(harness, kept):
    """Layers that are kept in float32 are kept so in the copy, too."""
    rng, policy = np.random.default_rng(0), "mixed_bfloat16" + (f";layers={kept}:float32" if kept else "")
    weights = [(rng.normal(size=(8, 8)).astype(np.float32), np.zeros(8, np.float32)) for _ in range(2)]
    amp = session(harness, policy=policy)
    with amp.scope():
        model = harness.mlp(weights)
    model = amp.prepare(model)
    rows = rng.normal(size=(4, 8)).astype(np.float32)
    x, found = amp.to_native(rows), []
    for each in (copy.deepcopy(model), model):
        with amp.inference(each), amp.autocast():
            found.append(np.float64(amp.to_numpy(each(x))))
    np.testing.assert_array_equal(*found)
    exact = np.maximum(np.float64(rows) @ weights[0][0], 0.0) @ weights[1][0]
    assert (np.abs(found[0] - exact).max() < 1e-5) == (kept == "*")
