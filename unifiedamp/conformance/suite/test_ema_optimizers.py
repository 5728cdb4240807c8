"""Averages when the optimizers that train a model change: another one, more parameters, other groups."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.suite.averaged import INF, SCALE, Averaged

pytestmark = pytest.mark.needs("ema")


def test_an_average_goes_on_with_another_optimizer(harness, form):
    """It trains the same weights; a backend may refuse it instead, and the first one goes on."""
    averaged = Averaged(harness, form, 0.75, warmup=True)
    amp, model = averaged.amp, averaged.model
    for feed in (1.0, INF, 2.0):
        averaged.feed(feed)
    other = harness.sgd([model], 0.25)
    try:
        model, other = amp.prepare(model, other)
    except ua.PrepareError:
        other = averaged.run.optimizer
    averaged.check()

    def step(x):
        amp.backward(lambda: model(x), other)
        amp.step(other)

    averaged.run.step = compiled(amp, form, step)
    for feed in (0.5, INF, 4.0, 1.0):
        before = averaged.weights()
        averaged.feed(feed)
        averaged.check()
        moved = [(value != before[name]).all() for name, value in averaged.weights().items()]
        assert all(moved) if math.isfinite(feed) else not any(moved)


@pytest.mark.needs("several_optimizers")
def test_an_average_of_a_model_while_others_join_its_optimizer(harness):
    """The optimizer takes another model's parameters between two steps: the first model's average goes on."""
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model, late = harness.probe([1.0, 2.0]), harness.probe([3.0, 4.0])
        optimizer = harness.sgd([model], 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    ema, oracle = amp.ema(model, 0.75), AverageOracle(0.75)
    models, x = [model], amp.to_native(np.float32([1.0, 2.0]))
    for joins in (False, False, True, False):
        if joins:
            late = amp.prepare(late)
            harness.extend(optimizer, late)
            models.append(late)
        before = harness.parameters(model)
        amp.backward(lambda: sum((each(x) for each in models[1:]), models[0](x)), optimizer)
        assert amp.step(optimizer).applied
        oracle.step(before, harness.parameters(model))
        oracle.check(ema.weights())
        assert (set(ema.weights()), ema.updates) == (set(before), oracle.updates)
