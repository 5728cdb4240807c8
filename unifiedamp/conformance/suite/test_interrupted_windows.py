"""What a call that failed leaves of a window beside gradients in float32: those of masters, findings of a step."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.suite.test_interrupted import Interrupted, Interrupter, clip_both, fail
from unifiedamp.conformance.suite.test_interrupted_updates import KINDS

INF = math.inf


@pytest.mark.parametrize("window", [1, pytest.param(2, marks=pytest.mark.needs("accumulation"))])
@pytest.mark.parametrize("call", ["unscale", "clip_grad_norm", "step"])
@pytest.mark.parametrize(("dtype", "masters", "update"), KINDS)
def test_gradients_of_an_interrupted_window_are_gone(harness, dtype, masters, update, call, window):
    """Those that were added up for masters and rounded weights too. The numbers are such that nothing is rounded."""
    policy = ua.Policy.parse(str(harness.pure_policies[dtype])).replace(update=update)
    run = probe_run(
        harness, values=(8.0,), lr=0.5, clip=clip_both, policy=policy, master_weights=masters, loss_scale=4.0,
        accumulate_steps=window,
    )  # fmt: skip
    Interrupter(run.amp, call, 2, False, fail)
    expected = 8.0
    for gradient, fails in ((1.0, False), (4.0, True), (2.0, False), (1.0, False)):
        for _ in range(window - 1):
            run.feed(gradient)
        if fails:
            with pytest.raises(Interrupted):
                run.feed(gradient)
        else:
            run.feed(gradient)
            expected -= 0.5 * gradient
        assert run.weights() == [expected]


@pytest.mark.needs("several_optimizers", "loss_scaling")
@pytest.mark.parametrize(("first", "after"), [(INF, 4.0), (1.0, 2.0)], ids=["overflow", "finite"])
def test_what_an_interrupted_step_found_is_no_part_of_the_iteration(harness, first, after):
    """The step of one optimizer fails, once it was judged: the other's alone updates the scale."""
    amp = session(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=100))
    models = [harness.probe([8.0]) for _ in range(2)]
    *models, one, two = amp.prepare(*models, *[harness.sgd([model], 0.5) for model in models])
    second = INF if math.isfinite(first) else 1.0
    for model, optimizer, gradient in zip(models, (one, two), (first, second), strict=True):
        x = amp.to_native(np.float32([gradient]))
        amp.backward(lambda model=model, x=x: model(x), optimizer)
    Interrupter(amp, "step", 1, True, fail)
    with pytest.raises(Interrupted):
        amp.step(one)
    assert amp.step(two).found_inf == math.isinf(second)
    assert amp.loss_scale == after
