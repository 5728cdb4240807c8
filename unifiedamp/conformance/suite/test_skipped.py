"""A skipped step leaves the optimizer alone: its momentum, its weight decay, its counts, its learning rate."""

import math

import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run

INF = math.inf


def dynamic(**changes):
    return ua.DynamicLossScale(**{"initial_scale": 4.0, "growth_interval": 3, **changes})


def momentum(harness):
    return lambda model: harness.sgd([model], 0.1, 0.9)


def test_momentum_rests(harness, form):
    """Momentum would go on moving the weights, had the step been done with gradients of zero."""
    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(), make=momentum(harness))
    run.feed(1.0, 2.0)
    run.feed(1.0, INF)
    run.feed(math.nan, 1.0)
    assert run.weights() == pytest.approx([0.9, 0.8], abs=1e-6)
    run.feed(1.0, 2.0)
    assert run.weights() == pytest.approx([0.9 - 0.19, 0.8 - 0.38], abs=1e-6)


def test_a_first_step_that_is_skipped_makes_no_momentum(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(), make=momentum(harness))
    for gradient in (INF, math.nan, 1.0, 1.0):
        run.feed(gradient)
    assert run.weights() == pytest.approx([1.0 - 0.1 - 0.19], abs=1e-6)


def test_weights_do_not_decay(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(), make=lambda model: harness.decaying_sgd(model, 0.1, 0.5))
    plain = probe_run(harness, form, loss_scale=dynamic(), make=lambda model: harness.decaying_sgd(model, 0.1, 0.5))
    for gradient in (INF, 1.0, INF, INF, 1.0):
        before = run.weights()
        run.feed(gradient)
        if math.isfinite(gradient):
            plain.feed(gradient)
        else:
            assert run.weights() == before
    assert run.weights() == plain.weights()
    assert run.weights()[0] < 0.8 - 0.05  # it did decay


@pytest.mark.needs("accumulation")
def test_nothing_moves_inside_a_window(harness, form):
    """Micro-batches apply nothing, so neither momentum nor counts nor weights move before the window ends."""
    run = probe_run(
        harness, form, loss_scale=dynamic(), make=momentum(harness), accumulate_steps=3,
    )  # fmt: skip
    seen = []
    for gradient in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        run.feed(gradient)
        seen += run.weights()
    assert seen == pytest.approx([1.0, 1.0, 0.9, 0.9, 0.9, 0.71], abs=1e-6)
    assert run.amp.applied_steps == 2


@pytest.mark.parametrize("scale", [4.0, "none"])
def test_the_optimizers_own_settings_hold(harness, scale):
    """What a step does is what the optimizer's own arithmetic does: momentum and decay under a scale as without."""
    run = probe_run(harness, loss_scale=scale, make=lambda model: harness.rescaled_sgd(model, 0.1, 0.25))
    run.feed(4.0)
    run.feed(8.0)
    assert run.weights() == pytest.approx([1.0 - 0.1 - 0.2], abs=1e-6)


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_the_optimizers_own_factor_comes_after_clipping(harness, clip):
    def clipped(amp, optimizer):
        if clip == "norm":
            amp.clip_grad_norm(optimizer, 2.0)
        else:
            amp.clip_grad_value(optimizer, 2.0)

    make = lambda model: harness.rescaled_sgd(model, 0.1, 0.25)  # noqa: E731
    run = probe_run(harness, loss_scale=dynamic(), make=make, clip=clipped)
    run.feed(8.0)
    assert run.weights() == pytest.approx([0.95], abs=1e-6)
    run.feed(INF)
    run.feed(8.0)
    assert run.weights() == pytest.approx([0.9], abs=1e-6)


def test_counts_of_the_optimizer_are_those_of_applied_steps(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(), optimizer="adam")
    for gradient in (INF, 1.0, INF, INF, 1.0, 1.0, math.nan):
        run.feed(gradient)
    assert harness.optimizer_steps(run.optimizer) == run.amp.applied_steps == 3
    assert run.amp.skipped_steps == 4
