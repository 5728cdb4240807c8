"""Gradients of two dtypes under one optimizer: each is checked, unscaled and clipped, with one norm over both."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)


def run_of(harness, form, **options):
    """Parameters of value 1, every other one float64."""
    return probe_run(harness, form, **{"values": (1.0, 1.0, 1.0), "loss_scale": SCALE, "probe": "wide_probe"} | options)


@pytest.mark.parametrize("bad", range(3))
def test_each_is_checked_and_unscaled(harness, form, bad):
    run = run_of(harness, form)
    gradients = [1.0, 1.0, 1.0]
    gradients[bad] = math.inf
    run.feed(*gradients)
    assert run.weights() == [1.0] * 3
    run.feed(1.0, 2.0, 3.0)
    assert run.weights() == pytest.approx([0.9, 0.8, 0.7], abs=1e-6)
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (1, 1, 2.0)


@pytest.mark.parametrize("scale", [4.0, "none"])
def test_each_is_clipped(harness, scale):
    def clip(amp, optimizer):
        amp.clip_grad_norm(optimizer, 3.5)
        amp.clip_grad_value(optimizer, 2.0)

    run = run_of(harness, "eager", loss_scale=scale, clip=clip)
    run.feed(2.0, 3.0, 6.0)  # a norm of 7
    assert run.weights() == pytest.approx([0.9, 0.85, 0.8], abs=1e-5)


@pytest.mark.needs("accumulation")
def test_each_is_added_up(harness, form):
    run = run_of(harness, form, accumulate_steps=2)
    for gradients in ((1.0, 2.0, 3.0), (3.0, 4.0, 5.0), (1.0, math.nan, 1.0), (1.0, 1.0, 1.0)):
        run.feed(*gradients)
    assert run.weights() == pytest.approx([0.8, 0.7, 0.6], abs=1e-6)
    assert run.amp.skipped_steps == 1


@pytest.mark.needs("layer_overrides")
@pytest.mark.parametrize("clip", ["norm", "value"])
def test_layers_of_two_dtypes_are_clipped_as_one(harness, clip):
    """Under a policy in 16 bits with one layer in float32 and no loss scale."""
    policy = harness.pure_policies["bfloat16"]
    policy = ua.Policy.parse(policy) if isinstance(policy, str) else policy
    amp = session(harness, policy=policy.replace(layer_overrides={"layer0": "float32"}))
    layers = [(np.eye(4, dtype=np.float32), np.zeros(4, np.float32)) for _ in range(2)]
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], 1.0)
    try:
        model, optimizer = amp.prepare(model, optimizer)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")
    before = harness.parameters(model)
    x, y = amp.to_native(np.full((2, 4), 4.0, np.float32)), amp.to_native(np.zeros((2, 4), np.float32))
    amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
    if clip == "norm":
        amp.clip_grad_norm(optimizer, 0.5)
    else:
        amp.clip_grad_value(optimizer, 0.25)
    amp.step(optimizer)
    moved = np.concatenate([np.ravel(value - before[name]) for name, value in harness.parameters(model).items()])
    if clip == "norm":
        assert np.linalg.norm(moved) == pytest.approx(0.5, rel=0.02)
    else:
        assert np.abs(moved).max() == pytest.approx(0.25, rel=0.01)
    assert (np.abs(moved) > 0.01).sum() == 40


TINY = 2.0**-13
"""A step from 1 that both 16-bit formats round away, and float32 does not."""


@pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed")  # torch's compiler
@pytest.mark.needs("master_weights", "layer_overrides")
@pytest.mark.parametrize(("params", "other"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_masters_of_layers_in_two_16_bit_dtypes(harness, form, params, other):
    """Each parameter is its master rounded to its own dtype, and no tiny update is lost."""
    policy = harness.pure_policies[params]
    policy = ua.Policy.parse(policy) if isinstance(policy, str) else policy
    layers = [(np.eye(2, dtype=np.float32), np.zeros(2, np.float32)) for _ in range(2)]
    try:
        policy = policy.replace(layer_overrides={"layer1": other})
        amp = session(harness, form, policy, master_weights=True, loss_scale=SCALE)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], TINY)
        model, optimizer = amp.prepare(model, optimizer)
    except (ua.PrepareError, ua.PolicyError, ua.UnsupportedError) as refusal:
        pytest.skip(f"refused: {refusal}")
    x, y = amp.to_native(np.float32([[1.0, 1.0]])), amp.to_native(np.zeros((1, 2), np.float32))

    def train(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    step, plain = compiled(amp, form, train), {}
    for _ in range(8):
        step(x, y)
    masters = amp.master_weights(model)
    for name, value in harness.parameters(model).items():
        plain[name] = np.float64(masters[name])
        low = np.float16(plain[name]) if other == "float16" and "layer1" in name else plain[name]
        np.testing.assert_allclose(value, low, rtol=2.0**-8)
        if "weight" in name or "kernel" in name:
            assert np.diag(plain[name]).max() < 1.0 - 4 * TINY, f"{name} lost its updates"
