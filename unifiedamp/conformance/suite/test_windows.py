"""Accumulation windows: the mean of whole windows, one scale inside each, and what becomes of a window not ended."""

import contextlib
import math
import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

pytestmark = pytest.mark.needs("accumulation")

INF = math.inf


def dynamic(**changes):
    return ua.DynamicLossScale(**{"initial_scale": 4.0, "growth_interval": 1, **changes})


class Loop:
    """A probe of value 1 under a session, and its results."""

    def __init__(self, harness, steps, loss_scale, **options):
        self.harness = harness
        self.amp = session(harness, loss_scale=loss_scale, accumulate_steps=steps, **options)
        model = harness.probe([1.0])
        self.model, self.optimizer = self.amp.prepare(model, harness.sgd([model], 0.1))

    def backward(self, gradient):
        x = self.amp.to_native(np.float32([gradient]))
        return self.amp.backward(lambda: self.model(x), self.optimizer)

    def feed(self, gradient):
        self.backward(gradient)
        return self.amp.step(self.optimizer)

    def weight(self):
        (value,) = self.harness.parameters(self.model).values()
        return float(value[0])


@pytest.mark.parametrize(("scale", "steps"), [(4.0, 2), (1.0, 3), ("none", 2), ("none", 3)])
def test_the_mean_of_the_window_is_applied(harness, form, scale, steps):
    run = probe_run(harness, form, loss_scale=scale, accumulate_steps=steps)
    for gradient in (6.0, 0.0, 12.0, 3.0, 3.0, 6.0):
        run.feed(gradient)
    assert run.weights() == pytest.approx([1.0 - 0.1 * 30.0 / steps], abs=1e-5)
    assert run.amp.applied_steps == 6 // steps


def test_the_scale_rests_inside_a_window(harness, form):
    """It grows at a window's end alone; so it backs off after an overflow in the first micro-batch."""
    run = probe_run(harness, form, loss_scale=dynamic(), accumulate_steps=3)
    for gradient in (1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0):
        run.feed(gradient)
    assert run.scales == [4.0] * 3 + [8.0] * 3 + [4.0] * 3 + [2.0] * 3
    assert run.amp.loss_scale == 4.0
    assert run.weights() == pytest.approx([0.8], abs=1e-6)


@pytest.mark.parametrize("position", range(3))
def test_an_overflow_anywhere_discards_one_window(harness, form, position):
    run = probe_run(harness, form, loss_scale=dynamic(growth_interval=100), accumulate_steps=3)
    window = [3.0, 3.0, 3.0]
    window[position] = INF
    for gradient in (*window, 1.0, 2.0, 3.0):
        run.feed(gradient)
    assert run.weights() == pytest.approx([0.8], abs=1e-6)
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (1, 1, 2.0)


def test_results_inside_and_at_the_end(harness):
    loop = Loop(harness, 2, dynamic())
    told = [tuple(loop.feed(gradient).values) for gradient in (1.0, 1.0, INF, 1.0, 1.0, INF, 1.0, 1.0)]
    waiting = "accumulating"
    assert told == [
        (False, False, waiting, 4.0, 4.0), (True, False, "applied", 4.0, 8.0),
        (False, False, waiting, 8.0, 8.0), (False, True, "non_finite", 8.0, 4.0),
        (False, False, waiting, 4.0, 4.0), (False, True, "non_finite", 4.0, 2.0),
        (False, False, waiting, 2.0, 2.0), (True, False, "applied", 2.0, 4.0),
    ]  # fmt: skip


def test_the_loss_comes_back_whole(harness):
    """Neither the scale nor the number of micro-batches is in it."""
    loop = Loop(harness, 4, 8.0)
    loss = loop.backward(3.0)
    assert float(np.ravel(loop.amp.to_numpy(loss))[0]) == 3.0


@pytest.mark.needs("context_form")
def test_the_scaled_loss_is_divided(harness):
    loop = Loop(harness, 4, 8.0)
    x = loop.amp.to_native(np.float32([3.0]))
    with loop.amp.autocast():
        loss = loop.model(x)
    with loop.amp.scale_loss(loss, loop.optimizer) as scaled:
        assert float(np.ravel(loop.amp.to_numpy(scaled.value))[0]) == 3.0 * 8.0 / 4.0


@pytest.mark.parametrize("done", [1, 2])
def test_a_last_window_that_is_short_is_discarded(harness, done):
    """Then nothing of it is left: the next window is a whole one, and counts begin anew."""
    loop = Loop(harness, 3, dynamic())
    for gradient in (1.0, 1.0, 1.0):
        loop.feed(gradient)
    for _ in range(done):
        loop.feed(100.0)
    result = loop.amp.discard_step(loop.optimizer)
    assert tuple(result.values) == (False, False, "discarded", 8.0, 8.0)
    told = [loop.feed(gradient).reason for gradient in (3.0, 3.0, 3.0)]
    assert told == ["accumulating", "accumulating", "applied"]
    assert loop.weight() == pytest.approx(0.6, abs=1e-6)
    assert (loop.amp.applied_steps, loop.amp.skipped_steps, loop.amp.loss_scale) == (2, 0, 16.0)


def test_an_overflow_that_is_discarded_is_forgotten(harness):
    loop = Loop(harness, 2, dynamic())
    loop.feed(INF)
    loop.backward(1.0)
    loop.amp.discard_step(loop.optimizer)
    assert [loop.feed(1.0).reason, loop.feed(3.0).reason] == ["accumulating", "applied"]
    assert loop.weight() == pytest.approx(0.8, abs=1e-6)
    assert (loop.amp.applied_steps, loop.amp.skipped_steps, loop.amp.loss_scale) == (1, 0, 8.0)


def test_gradients_of_a_window_are_scaled_until_its_end(harness):
    """Inside, unscale does nothing; at the end, gradients are the mean."""
    loop, seen = Loop(harness, 2, 8.0), []
    for gradient in (4.0, 2.0):
        loop.backward(gradient)
        loop.amp.unscale(loop.optimizer)
        (value,) = loop.amp.gradients(loop.optimizer).values()
        seen.append(float(np.ravel(loop.amp.to_numpy(value))[0]))
        loop.amp.step(loop.optimizer)
    assert seen == [4.0 * 8.0 / 2.0, 3.0]
    assert loop.amp.gradients(loop.optimizer) == {}


def test_several_losses_in_one_micro_batch(harness):
    loop = Loop(harness, 2, 8.0)
    for first, second in ((1.0, 2.0), (3.0, 4.0)):
        loop.backward(first)
        loop.backward(second)
        loop.amp.step(loop.optimizer)
    assert loop.weight() == pytest.approx(0.5, abs=1e-6)


REACHED = [("both", "first"), ("first", "both"), ("second", "first"), ("both", "second")]
"""Which models the losses of two micro-batches reach."""


def two_models(harness, form, **options):
    """Two probes of value 1 under one optimizer; return the session, the optimizer, a micro-batch and the weights."""
    amp = session(harness, form, **options)
    with amp.scope():
        models = [harness.probe([1.0]), harness.probe([1.0])]
        native = harness.sgd(models, 2.0**-3)
    *models, optimizer = amp.prepare(*models, native)
    losses = {
        "first": lambda x: models[0](x),
        "second": lambda x: models[1](x),
        "both": lambda x: models[0](x) + models[1](x),
    }

    def backward(reaches, gradient):
        x = amp.to_native(np.float32([gradient]))
        return amp.backward(lambda: losses[reaches](x), optimizer)

    def weights():
        return [float(harness.parameters(model).popitem()[1][0]) for model in models]

    return amp, optimizer, losses, backward, weights


def moved(reached, gradients):
    """Return the sum of gradients that each of the two models gets."""
    pairs = list(zip(reached, gradients, strict=True))
    return [sum(g for reaches, g in pairs if reaches in ("both", name)) for name in ("first", "second")]


@pytest.mark.parametrize("reached", REACHED, ids="-".join)
def test_what_a_micro_batch_does_not_reach_stays(harness, form, reached):
    """Gradients of the micro-batch before are neither lost nor counted twice where the next one has none."""
    amp, optimizer, losses, _, weights = two_models(harness, form, loss_scale=4.0, accumulate_steps=2)

    def micro_batch(reaches):
        def step(x):
            amp.backward(lambda: losses[reaches](x), optimizer)
            amp.step(optimizer)

        return compiled(amp, form, step)

    steps = {reaches: micro_batch(reaches) for reaches in set(reached)}
    for _ in range(2):
        for reaches, gradient in zip(reached, (2.0, 4.0), strict=True):
            steps[reaches](amp.to_native(np.float32([gradient])))
    expected = [1.0 - 2 * 2.0**-3 * total / 2 for total in moved(reached, (2.0, 4.0))]
    assert weights() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reached", REACHED, ids="-".join)
@pytest.mark.parametrize("scale", [4.0, "none"])
@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16"])
def test_what_a_second_loss_does_not_reach_stays(harness, policy, scale, reached):
    """The same of two losses in one step, with master weights where parameters have 16 bits."""
    options = {"loss_scale": scale}
    if policy != "float32":
        options |= {"policy": harness.pure_policies[policy], "master_weights": True}
        if not harness.capabilities().feature("master_weights"):
            pytest.skip("the backend declares no master_weights")
    amp, optimizer, _, backward, weights = two_models(harness, "eager", **options)
    for reaches, gradient in zip(reached, (2.0, 1.0), strict=True):
        backward(reaches, gradient)
    assert amp.step(optimizer).applied
    assert weights() == [1.0 - 2.0**-3 * total for total in moved(reached, (2.0, 1.0))]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loss_that_depends_on_nothing(harness, steps):
    """It is refused, or adds nothing; what was gathered before it is applied as it is."""
    loop = Loop(harness, steps, 4.0)
    x = loop.amp.to_native(np.float32([7.0]))
    for gradient in (1.0, 2.0):
        for index in range(steps):
            loop.backward(gradient)
            if index == steps - 1:
                with contextlib.suppress(ua.LossError), warnings.catch_warnings():
                    warnings.simplefilter("ignore", ua.StepWarning)
                    loop.amp.backward(lambda: harness.mean_square(x, x), loop.optimizer)
            result = loop.amp.step(loop.optimizer)
        assert result.applied
    assert loop.weight() == pytest.approx(0.7, abs=1e-6)


@pytest.mark.needs("context_form")
def test_a_scaled_loss_that_depends_on_nothing(harness):
    """A loop that catches the refusal goes on with what was gathered before it."""
    loop = Loop(harness, 2, 4.0)
    x = loop.amp.to_native(np.float32([7.0]))
    loop.feed(1.0)
    with contextlib.suppress(ua.LossError), warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StepWarning)
        with loop.amp.autocast():
            loss = harness.mean_square(x, x)
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled:
            scaled.backward()
    loop.backward(3.0)
    assert loop.amp.step(loop.optimizer).applied
    assert loop.weight() == pytest.approx(0.8, abs=1e-6)
