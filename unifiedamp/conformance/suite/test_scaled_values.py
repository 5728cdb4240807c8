"""``scaled_loss.value`` differentiated by the framework's own call: refused, or right as ``scaled_loss.backward()``."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.suite.native_loop import FEED, START, STEPPED, Loop

pytestmark = pytest.mark.needs("context_form")


def test_the_scaled_value_differentiated_by_hand(harness):
    """Refused, or as right as ``scaled_loss.backward()``."""
    loop = Loop(harness)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
            loop.native_backward(scaled_loss.value)
        loop.amp.step(loop.optimizer)

    for count in range(1, 3):
        try:
            loop.run(step)
        except ua.StepOrderError:
            assert loop.weights() == list(START)
            return
        assert loop.weights() == [10.0 - 0.5 * count, 10.0 - 1.0 * count]


@pytest.mark.needs("accumulation")
def test_scaled_values_of_a_window_differentiated_by_hand(harness):
    """Refused, or as right as ``scaled_loss.backward()`` for each."""
    loop = Loop(harness, accumulate_steps=2)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
            loop.native_backward(scaled_loss.value)
        loop.amp.step(loop.optimizer)

    try:
        for _ in range(4):
            loop.run(step)
    except ua.StepOrderError:
        assert loop.weights() == list(START)
        return
    assert loop.weights() == [10.0 - 0.5 * 2, 10.0 - 1.0 * 2]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("then", ["step", "unscale", "gradients", "clip", "discard"])
def test_masters_of_a_scaled_value_differentiated_by_hand(harness, policy, then):
    """Refused; or masters get the gradients of 16 bits in float32, whatever call comes next, once."""
    loop = Loop(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=1024.0)
    amp, optimizer = loop.amp, loop.optimizer

    def found(scale):
        gradients = amp.gradients(optimizer).values()
        assert [harness.dtype_of(each) for each in gradients] == ["float32"] * 2
        assert [float(np.ravel(amp.to_numpy(each))[0]) for each in gradients] == [one * scale for one in FEED]

    def step(loss):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            loop.native_backward(scaled_loss.value)
        if then == "gradients":
            found(1024.0)
        if then in ("unscale", "clip"):
            amp.unscale(optimizer)
            found(1.0)
        if then == "clip":
            amp.clip_grad_norm(optimizer, 100.0)
        if then == "discard":
            amp.discard_step(optimizer)
            assert amp.gradients(optimizer) == {}
        else:
            assert amp.step(optimizer).applied

    try:
        loop.run(step)
    except ua.StepOrderError:
        assert loop.weights() == list(START)
        return
    assert loop.weights() == (list(START) if then == "discard" else STEPPED)
    loop.run(loop.right)
    assert loop.weights() == (STEPPED if then == "discard" else [9.0, 8.0])
