"""Tuning changes how fast a model trains, not what it learns."""

import numpy as np
import pytest

from unifiedamp.conformance.driver import session

ITEMS = ["channels_last", "fused_optimizer", "set_to_none"]


def trained(harness, policy, tuning, **options):
    """Parameters and statistics of a convnet after three steps, by name."""
    amp = session(harness, policy=policy, tuning=dict.fromkeys(tuning, True) | {"best_effort": True}, **options)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1, 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(1)
    images = amp.to_native(harness.image_batch(rng.normal(2.0, 3.0, (8, 8, 8, 1)).astype(np.float32)))
    labels = amp.to_native(rng.integers(0, 10, 8))
    for _ in range(3):
        amp.backward(lambda: harness.cross_entropy(model(images), labels), optimizer)
        assert amp.step(optimizer).applied
    found = amp.master_weights(model)
    amp.close()
    return found


def check(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.needs("float32_weights")
def test_a_tuned_model_learns_the_same(harness):
    plain = trained(harness, "float32", ())
    for item in ITEMS:
        if harness.capabilities().tunes(item):
            check(trained(harness, "float32", (item,)), plain, 1e-4)
    check(trained(harness, "float32", ITEMS), plain, 1e-4)


@pytest.mark.needs("float32_weights", "master_weights")
def test_tuned_master_weights_learn_the_same(harness):
    policy = harness.pure_policies["bfloat16"]
    plain, tuned = (trained(harness, policy, items, master_weights=True) for items in ((), ITEMS))
    check(tuned, plain, 2e-2)


def rows_of(amp, setting):
    return [row for row in amp.explain() if row.setting == setting]


@pytest.mark.parametrize("models", [1, 2])
def test_biases_that_a_norm_takes_away_are_named(harness, models):
    """In the plan, for each model that was prepared; layers without a norm behind them are not."""
    amp = session(harness, tuning={"set_to_none": True, "best_effort": True})
    assert rows_of(amp, "tuning.bias_before_norm") == []
    for _ in range(models):
        with amp.scope():
            model = harness.convnet(0)
        amp.prepare(model)
    if not harness.capabilities().tunes("set_to_none"):
        pytest.skip("the backend tunes nothing")
    (row,) = rows_of(amp, "tuning.bias_before_norm")
    assert row.value == ", ".join(["conv"] * models)


def test_layers_that_are_recomputed_are_named(harness):
    support = harness.capabilities().tunes("checkpoint_layers")
    if not support:
        pytest.skip(f"declared: {support.reason}")
    amp = session(harness, tuning={"checkpoint_layers": ["conv", "head"]})
    with amp.scope():
        model = harness.convnet(0)
    amp.prepare(model)
    (row,) = rows_of(amp, "tuning.checkpoint_layers")
    assert {name for name in ("conv", "norm", "head") if name in row.note.partition(";")[0]} == {"conv", "head"}
