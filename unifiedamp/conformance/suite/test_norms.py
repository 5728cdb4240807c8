"""Normalization layers: which dtype their parameters keep, in training and in copies for inference."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import session

FINE = 1.0 + 2.0**-12
"""float32 holds it; bfloat16 and float16 round it to 1."""


def pure(harness, keep, dtype="bfloat16"):
    policy = harness.pure_policies[dtype]
    policy = ua.Policy.parse(policy) if isinstance(policy, str) else policy
    return policy.replace(keep_norm_float32=keep)


def prepared(amp, *objects):
    """Prepare; a framework whose layers take their dtypes when they are made may refuse, by name."""
    try:
        return amp.prepare(*objects)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")


def images(harness):
    """A batch, where parameters get their values with the first one."""
    return harness.image_batch(np.ones((2, 8, 8, 1), np.float32))


def kept(harness, policy, make, batch=None):
    """Return layer → whether its parameters hold what float32 holds, in a session of that policy."""
    amp = session(harness, policy=policy)
    with amp.scope():
        model = make()
    model = prepared(amp, model)
    if batch is not None:
        with amp.inference(model):
            model(amp.to_native(batch))
    names = amp.master_weights(model)
    amp.load_master_weights(model, {name: np.full(array.shape, FINE, np.float32) for name, array in names.items()})
    found = {}
    for name, array in harness.parameters(model).items():
        layer = "norm" if "norm" in name.split(".")[0] else "other"
        found[layer] = found.get(layer, True) and bool((array == FINE).all())
    return found


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["layer_norm", "batch_norm"])
def test_norms_are_kept_in_float32(harness, kind, dtype):
    policy = pure(harness, True, dtype)
    if kind == "layer_norm":
        found = kept(harness, policy, lambda: harness.layer_norm(8))
    else:
        found = kept(harness, policy, lambda: harness.convnet(0), images(harness))
    assert found == {"norm": True, "other": False}


@pytest.mark.needs("float32_weights", "weight_updates")
def test_norms_are_kept_beside_weights_whose_updates_are_rounded(harness):
    """What is loaded is split in two for those weights alone."""
    policy = ua.Policy.parse("bfloat16;update=kahan").replace(keep_norm_float32=True)
    assert kept(harness, policy, lambda: harness.layer_norm(8)) == {"norm": True, "other": False}


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_follow_the_policy_when_told_so(harness, dtype):
    assert kept(harness, pure(harness, False, dtype), lambda: harness.layer_norm(8)) == {"norm": False, "other": False}


@pytest.mark.needs("float32_weights", "layer_overrides")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_that_is_named_has_the_dtype_named(harness, keep, dtype):
    """Whatever ``keep_norm_float32`` says."""
    policy = pure(harness, keep).replace(layer_overrides={"norm": dtype})
    assert kept(harness, policy, lambda: harness.layer_norm(8)) == {"norm": dtype == "float32", "other": False}


@pytest.mark.needs("float32_weights", "layer_overrides")
def test_a_norm_in_a_block_has_the_dtype_that_names_it(harness):
    """The dtype of a glob that matches the norm itself; one that names the block alone leaves it in float32."""
    policy = pure(harness, True, "float16")
    expected = {"block": False, "block.norm": True}
    for overrides in ({}, {"block": "float16"}, {"block*": "float16"}, {"block": "float16", "block.norm": "float32"}):
        amp = session(harness, policy=policy.replace(layer_overrides=overrides))
        with amp.scope():
            model = harness.nested_norm(8)
        model = prepared(amp, model)
        names = amp.master_weights(model)
        amp.load_master_weights(model, {name: np.full(array.shape, FINE, np.float32) for name, array in names.items()})
        found = {}
        for name, array in harness.parameters(model).items():
            layer = "block.norm" if "norm" in name else "block"
            found[layer] = found.get(layer, True) and bool((array == FINE).all())
        expected["block.norm"] = "block*" not in overrides
        assert found == expected


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_mixed_policies_keep_all_parameters(harness, policy):
    model_kept = kept(harness, policy, lambda: harness.convnet(0), images(harness))
    assert model_kept == {"norm": True, "other": True}


def test_a_kept_norm_trains_and_answers(harness):
    """Between layers in 16 bits, its own in float32, without a word from the framework about dtypes."""
    amp = session(harness, policy=pure(harness, True))
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.05)
    model, optimizer = prepared(amp, model, optimizer)
    rng = np.random.default_rng(0)
    x = amp.to_native(harness.image_batch(rng.normal(2.0, 3.0, (16, 8, 8, 1)).astype(np.float32)))
    labels = amp.to_native(rng.integers(0, 10, 16))
    with amp.inference(model):
        model(x)  # parameters may get their values with the first batch
    before, losses = harness.parameters(model), []
    for _ in range(10):
        loss = amp.backward(lambda: harness.cross_entropy(model(x), labels), optimizer)
        losses.append(float(np.ravel(amp.to_numpy(loss))[0]))
        amp.step(optimizer)
    assert losses[-1] < losses[0]
    after = harness.parameters(model)
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in before if "norm" in name.split(".")[0])


@pytest.mark.needs("master_weights", "ema", "float32_weights")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_kept_norm_beside_master_weights(harness, dtype):
    """It needs no master: it trains and is averaged in float32 as it is, and what is beside it by its masters."""
    policy = pure(harness, True, dtype).replace(output_dtype="float32")
    amp = session(harness, policy=policy, master_weights=True, loss_scale=8.0)
    with amp.scope():
        model = harness.layer_norm(8)
        optimizer = harness.sgd([model], 0.25)
    model, optimizer = prepared(amp, model, optimizer)
    rng = np.random.default_rng(0)
    x, y = (amp.to_native(rng.normal(size=(4, 8)).astype(np.float32)) for _ in range(2))
    ema, average, first = amp.ema(model, 0.5), AverageOracle(0.5), amp.master_weights(model)
    for _ in range(3):
        before = amp.master_weights(model)
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        assert amp.step(optimizer).applied
        average.step(before, amp.master_weights(model))
    average.check(ema.weights(), rtol=1e-5)
    last = amp.master_weights(model)
    assert all(np.abs(last[name] - first[name]).max() > 0 for name in last)
    for name, value in harness.parameters(model).items():
        rounding = 0.0 if "norm" in name else 2.0**-8
        np.testing.assert_allclose(value, last[name], rtol=rounding, atol=rounding / 64)


@pytest.mark.needs("convert_model", "float32_weights")
def test_norms_of_a_copy(harness):
    """They keep what float32 holds; the copy answers all the same."""
    amp = session(harness, policy="float32")
    with amp.scope():
        model = harness.layer_norm(8)
    model = amp.prepare(model)
    names = amp.master_weights(model)
    amp.load_master_weights(model, {name: np.full(array.shape, FINE, np.float32) for name, array in names.items()})
    x = amp.to_native(np.arange(32, dtype=np.float32).reshape(4, 8) % 7)
    made = amp.convert_model(model, x, policy=ua.Policy.parse("mixed_bfloat16").replace(keep_norm_float32=True))
    assert np.isfinite(amp.to_numpy(made(x))).all()
    held = amp.master_weights(made)
    norms = [array for name, array in held.items() if not name.startswith("dense")]
    assert sum(bool((array == FINE).all()) for array in norms) >= 2
