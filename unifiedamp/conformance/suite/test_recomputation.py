"""Layers that are recomputed in the backward pass train as they would without, also batch norm and in low precision."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

MIXED = ua.Policy.parse("mixed_bfloat16")
KEPT = {"conv": "float32", "linear": "float32"}
NAMES = ["float32", "mixed_bfloat16", "op_overrides"]

pytestmark = pytest.mark.usefixtures("recomputes")


@pytest.fixture
def recomputes(harness):
    support = harness.capabilities().tunes("checkpoint_layers")
    if not support:
        pytest.skip(f"declared: {support.reason}")


def trained(harness, form, layers, policy):
    """Parameters and statistics of a convnet after some steps, by name."""
    amp = session(harness, form, policy, tuning={"checkpoint_layers": layers} if layers else None)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1, 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(1)
    images = amp.to_native(harness.image_batch(rng.normal(2.0, 3.0, (8, 8, 8, 1)).astype(np.float32)))
    labels = amp.to_native(rng.integers(0, 10, 8))

    def step(images, labels):
        amp.backward(lambda: harness.cross_entropy(model(images), labels), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for _ in range(3):
        step(images, labels)
    found = amp.master_weights(model)
    amp.close()
    return found


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", MIXED.replace(op_overrides=KEPT)], ids=NAMES)
@pytest.mark.parametrize("layers", [["norm"], ["conv", "norm"], ["head"]], ids="-".join)
def test_training_is_the_same(harness, form, layers, policy):
    """Statistics move once a step, and the second pass is in the mode and the precision of the first."""
    if not isinstance(policy, str) and not harness.capabilities().feature("op_overrides"):
        pytest.skip("the backend declares no op_overrides")
    plain, again = trained(harness, form, (), policy), trained(harness, form, layers, policy)
    # A compiler may fuse the second pass otherwise, and so round otherwise.
    rounding = 0.0 if form.startswith("eager") else 1e-6 if policy == "float32" else 2e-2
    for name, value in plain.items():
        np.testing.assert_allclose(again[name], value, rtol=rounding, atol=rounding, err_msg=name)
