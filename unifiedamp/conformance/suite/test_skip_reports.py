"""What is told of a skipped step: which gradients were not finite, and whether its loss was."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

INF = math.inf


def test_names_are_those_of_the_last_skipped_step(harness, form):
    """In every form, and of each step by itself; the loss is told by whether it was finite."""
    run = probe_run(harness, form, values=(0.0, 0.0), loss_scale=ua.DynamicLossScale(max_consecutive_skips=2))
    names = list(harness.parameters(run.model))
    for pair in ((INF, 1.0), (1.0, 1.0)) * 3:
        run.feed(*pair)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            run.feed(1.0, INF)
    assert caught.value.tensors == (names[1],)
    assert caught.value.loss_was_finite is False  # 0 times inf is nan


def test_names_where_not_every_parameter_has_a_gradient(harness, form):
    """The loss is computed from the second of two models under one optimizer."""
    amp = session(harness, form, loss_scale=ua.StaticLossScale(4.0, max_consecutive_skips=2))
    models = [harness.probe([1.0]), harness.probe([1.0, 1.0])]
    *models, optimizer = amp.prepare(*models, harness.sgd(models, 0.1))

    def step(x):
        amp.backward(lambda: models[1](x), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    amp.backward(lambda: models[1](amp.to_native(np.float32([1.0, 1.0]))), optimizer)
    first, second = amp.gradients(optimizer)
    amp.discard_step(optimizer)
    for pair, bad in (((1.0, 2.0**127), second), ((2.0**127, 1.0), first)):
        with pytest.raises(ua.LossScaleExhausted) as caught:
            for _ in range(60):
                step(amp.to_native(np.float32(pair)))
        assert caught.value.tensors == (bad,)
        step(amp.to_native(np.float32([0.0, 0.0])))


@pytest.mark.needs("several_optimizers")
def test_names_are_of_the_optimizer_that_skipped_last(harness, form):
    """One of two in each iteration, and both in the last one."""

    class Observer:
        heard = ()

        def on_step_skipped(self, state, report):
            self.heard = (*self.heard, report.tensors)

    amp, observer = session(harness, form, loss_scale=ua.StaticLossScale(4.0, max_consecutive_skips=9)), Observer()
    models = [harness.probe([0.0]), harness.probe([0.0, 0.0])]
    *models, one, two = amp.prepare(*models, *[harness.sgd([model], 0.1) for model in models])
    amp.observe(observer)

    def step(x, y):
        for model, optimizer, value in ((models[0], one, x), (models[1], two, y)):
            amp.backward(lambda model=model, value=value: model(value), optimizer)
            amp.step(optimizer)

    names = []
    for model, optimizer, count in ((models[0], one, 1), (models[1], two, 2)):
        x = amp.to_native(np.ones(count, np.float32))
        amp.backward(lambda model=model, x=x: model(x), optimizer)
        names.append(tuple(amp.gradients(optimizer)))
        amp.discard_step(optimizer)
    call, expected = compiled(amp, form, step), []
    for first, second in ((INF, 1.0), (1.0, INF), (INF, 1.0), (1.0, 1.0), (INF, INF)):
        call(amp.to_native(np.float32([first])), amp.to_native(np.float32([1.0, second])))
        if INF in (first, second):
            expected.append((names[1][1],) if second == INF else names[0])
    assert observer.heard == tuple(expected)


def test_the_loss_told_is_that_of_the_last_skipped_step(harness, form):
    """Not of a skipped one before, an applied one between, or a discarded one: here the backward pass overflows."""
    run = probe_run(harness, form, values=(0.0,), loss_scale=ua.StaticLossScale(4.0, max_consecutive_skips=2))
    for gradient in (INF, 1.0):
        run.feed(gradient)
    x = run.amp.to_native(np.float32([INF]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    run.amp.discard_step(run.optimizer)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            run.feed(2.0**127)
    assert caught.value.tensors == tuple(harness.parameters(run.model))
    assert caught.value.loss_was_finite is True


def test_the_loss_told_is_of_that_step_alone(harness, form):
    """After a step whose own loss was not finite, and none that was discarded."""
    run = probe_run(harness, form, values=(0.0,), loss_scale=ua.StaticLossScale(4.0, max_consecutive_skips=2))
    for gradient in (INF, 1.0):
        run.feed(gradient)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            run.feed(2.0**127)
    assert caught.value.loss_was_finite is True


def test_a_loss_that_was_discarded_is_not_told(harness):
    """Of the first skipped step after it, whose loss was finite."""
    scale = ua.StaticLossScale(4.0, max_consecutive_skips=1)
    run = probe_run(harness, values=(0.0,), loss_scale=scale)
    x = run.amp.to_native(np.float32([INF]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    run.amp.discard_step(run.optimizer)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        run.feed(2.0**127)
    assert caught.value.loss_was_finite is True


@pytest.mark.parametrize("window", [1, pytest.param(2, marks=pytest.mark.needs("accumulation"))])
@pytest.mark.parametrize("place", [0, 1])
def test_any_loss_of_the_step_is_told(harness, place, window):
    """One of two losses, or of two micro-batches, is not finite: the first or the last."""
    scale = ua.StaticLossScale(4.0, max_consecutive_skips=1)
    amp = session(harness, loss_scale=scale, accumulate_steps=window)
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            for index in range(2):
                x = amp.to_native(np.float32([INF if index == place else 1.0]))
                amp.backward(lambda x=x: model(x), optimizer)
                if window == 2 or index == 1:
                    amp.step(optimizer)
    assert caught.value.loss_was_finite is False
