"""A skipped step leaves the optimizer alone: its momentum, its weight decay, its counts, its learning rate."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

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


class Pair:
    """Two probes of value 1 under one optimizer with momentum."""

    def __init__(self, harness, scale):
        self.harness = harness
        self.amp = session(harness, loss_scale=scale)
        models = [harness.probe([1.0]), harness.probe([1.0])]
        *self.models, self.optimizer = self.amp.prepare(*models, harness.sgd(models, 0.125, 0.5))

    def backward(self, gradient, models, fails=False):
        x = self.amp.to_native(np.float32([gradient]))

        def loss():
            answers = [model(x) for model in models]
            if fails:
                raise KeyError
            return sum(answers[1:], answers[0])

        self.amp.backward(loss, self.optimizer)

    def end(self, how):
        """Bring a window that has gradients to an end."""
        if how == "discarded":
            self.amp.discard_step(self.optimizer)
        elif how == "interrupted":
            with pytest.raises(KeyError):
                self.backward(1.0, self.models, fails=True)
        else:
            self.amp.step(self.optimizer)

    def weights(self):
        return [float(self.harness.parameters(model).popitem()[1][0]) for model in self.models]


@pytest.mark.parametrize(
    ("how", "scale"),
    [("skipped", 4.0), ("discarded", 4.0), ("interrupted", 4.0), ("discarded", "none"), ("interrupted", "none")],
)
@pytest.mark.parametrize("reached", [0, 1])
def test_what_a_step_does_not_reach_rests(harness, how, scale, reached):
    """Momentum moves no weights of a model that the loss is not computed from, whatever became of the step before."""
    pair = Pair(harness, scale)
    pair.backward(1.0, pair.models)
    pair.end("applied")
    pair.backward(INF if how == "skipped" else 1.0, pair.models)
    pair.end(how)
    assert pair.weights() == [0.875, 0.875]
    pair.backward(1.0, [pair.models[reached]])
    assert len(pair.amp.gradients(pair.optimizer)) == 1
    pair.end("applied")
    expected = [0.875, 0.875]
    expected[reached] -= 0.125 * 1.5
    assert pair.weights() == pytest.approx(expected, abs=1e-6)
