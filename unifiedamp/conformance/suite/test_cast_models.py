"""A model whose parameters are cast after ``amp.prepare`` is refused: its optimizer and policy are made for others."""

import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

CASES = [
    ("mlp", "float32", {"loss_scale": 4.0}), ("mlp", "mixed_bfloat16", {}), ("probe", "float32", {}),
    ("probe", "mixed_bfloat16", {}), ("probe", "bfloat16", {}), ("probe", "bfloat16", {"master_weights": True}),
    ("probe", "bfloat16;update=stochastic", {}), ("probe", "float16", {"master_weights": True, "loss_scale": 4.0}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "policy", "options"), CASES, ids=[f"{c[0]}-{c[1]}-{'-'.join(c[2])}" for c in CASES])
def test_it_is_refused_until_it_is_cast_back(harness, form, model, policy, options):
    """Whether the forward pass fails, as matrix products do, or would go on; nothing is applied."""
    for needed in [*options, "weight_updates"] if "update" in policy else options:
        if needed in ("master_weights", "weight_updates") and not harness.capabilities().feature(needed):
            pytest.skip(f"declares no {needed}")
    amp = session(harness, form, harness.pure_policies.get(policy, policy), **options)
    if amp.policy.emulate and amp.policy.param_dtype != "float32":
        pytest.skip("emulated parameters may be arrays of another dtype, which the messages name")
    pair = np.float32([[0.5, 0.25], [0.25, 0.5]]), np.float32([0.25, 0.5])
    with amp.scope():
        net = harness.mlp([pair, pair]) if model == "mlp" else harness.probe([0.5, 0.25])
        optimizer = harness.sgd([net], 0.125)
    net, optimizer = amp.prepare(net, optimizer)

    def train(x):
        amp.backward(lambda: harness.mean_square(net(x), x) if model == "mlp" else net(x), optimizer)
        amp.step(optimizer)

    step, x = compiled(amp, form, train), amp.to_native(np.ones((3, 2) if model == "mlp" else 2, np.float32))
    step(x)
    own = amp.policy.param_dtype
    for dtype in ("float64", "float16" if own == "float32" else "float32"):
        harness.cast_model(net, dtype)
        before, says = harness.parameters(net), rf"is {dtype} now; it was {own}.*do not cast a prepared model"
        for _ in range(2):
            with pytest.raises(ua.ParamDtypeError, match=says):
                step(x)
        assert all(np.array_equal(value, before[name]) for name, value in harness.parameters(net).items())
        harness.cast_model(net, own)
    assert amp.applied_steps == 1
    step(x)
    assert amp.applied_steps == 2


def test_a_model_in_float64_trains_in_float64(harness, form):
    """Updates that float32 weights would lose are kept, of gradients that were scaled."""
    amp, net = session(harness, form, "float32", loss_scale=1024.0), harness.probe([1.0, 2.0])
    harness.cast_model(net, "float64")
    net, optimizer = amp.prepare(net, harness.sgd([net], 0.5))

    def train(x):
        amp.backward(lambda: net(x), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)

    step, gradient = compiled(amp, form, train), np.array([1e-11, 3e-11])
    for _ in range(2):
        step(amp.to_native(gradient, dtype="float64"))
    moved = np.concatenate(list(harness.parameters(net).values())) - [1.0, 2.0]
    assert np.array_equal(np.round(moved / -gradient, 3), [1.0, 1.0])


def test_a_model_in_float64_is_not_taken_in_silence_for_one_in_fewer_bits(harness):
    """No framework casts it: it is refused, or the user is told that the policy has no effect."""
    amp, net = session(harness, "eager", "mixed_bfloat16"), harness.probe([1.0, 2.0])
    harness.cast_model(net, "float64")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            amp.prepare(net, harness.sgd([net], 0.5))
            said = " ".join(str(each.message) for each in caught if issubclass(each.category, ua.PolicyWarning))
        except ua.ParamDtypeError as error:
            said = str(error)
    assert "float64" in said
