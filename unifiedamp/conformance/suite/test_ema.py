"""Averages of weights move with applied steps alone, each with the optimizer that trains it."""

import math

import numpy as np
import pytest

from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.suite.averaged import FEEDS, INF, NAN, SCALE, Averaged, Pair, bits

pytestmark = pytest.mark.needs("ema")


@pytest.mark.parametrize("warmup", [False, True], ids=["constant", "warmup"])
@pytest.mark.parametrize("decay", [0.0, 0.25, 0.75, 0.999])
def test_an_average_moves_with_applied_steps(harness, form, decay, warmup):
    averaged = Averaged(harness, form, decay, warmup)
    for feed in FEEDS:
        averaged.feed(feed)
        averaged.check()
    assert averaged.ema.updates == sum(map(math.isfinite, FEEDS))


@pytest.mark.needs("loss_scaling")
def test_a_skipped_step_leaves_an_average_bit_for_bit(harness, form):
    averaged = Averaged(harness, form)
    for feed in (1.0, 2.0, 4.0, 0.5):
        averaged.feed(feed)
    before = bits(averaged.ema.weights())
    for feed in (INF, NAN, INF, -INF, NAN):
        averaged.feed(feed)
        assert bits(averaged.ema.weights()) == before
    assert (averaged.ema.updates, averaged.amp.skipped_steps) == (4, 5)


def test_a_first_step_that_is_skipped_starts_nothing(harness, form):
    averaged = Averaged(harness, form)
    for feed in (INF, 1.0, 2.0):
        averaged.feed(feed)
        averaged.check()


@pytest.mark.parametrize("warmup", [False, True], ids=["constant", "warmup"])
def test_without_loss_scaling_every_step_counts(harness, form, warmup):
    averaged = Averaged(harness, form, 0.75, warmup, loss_scale="none")
    for feed in (1.0, -2.0, 0.5, 3.0, 2.0, 0.25, 4.0):
        averaged.feed(feed)
        averaged.check()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_an_average_is_of_the_float32_weights(harness, form, policy):
    averaged = Averaged(harness, form, 0.5, policy=policy, lr=2.0**-12)
    for feed in (1.0, 2.0, 1.0, 0.5, 1.0):
        averaged.feed(feed)
    averaged.oracle.check(averaged.ema.weights(), rtol=2.0**-22)


@pytest.mark.needs("accumulation")
def test_an_average_moves_once_a_window(harness, form):
    averaged = Averaged(harness, form, accumulate_steps=3)
    for window in ((1.0, 2.0, 0.5), (1.0, INF, 1.0), (4.0, 1.0, 1.0), (2.0, 0.0, 1.0)):
        for place, feed in enumerate(window):
            averaged.feed(feed, applies=place == 2 and all(map(math.isfinite, window)))
            averaged.check()
    assert averaged.ema.updates == 3


def test_a_discarded_step_leaves_an_average(harness):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before = bits(averaged.ema.weights())
    x = averaged.amp.to_native(np.float32([1.0, 1.0]))
    averaged.amp.backward(lambda: averaged.model(x), averaged.run.optimizer)
    averaged.amp.discard_step(averaged.run.optimizer)
    assert bits(averaged.ema.weights()) == before
    averaged.feed(2.0)
    averaged.check()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_an_average_of_a_model_that_trains_already(harness, form, count):
    """Steps that were traced or captured before it move it too."""
    averaged = Averaged(harness, form, after=[1.0] * count)
    for feed in FEEDS:
        averaged.feed(feed)
        averaged.check()


def test_two_averages_of_one_model(harness, form):
    averaged = Averaged(harness, form, 0.5)
    other, expected = averaged.amp.ema(averaged.model, 0.9, warmup=True), AverageOracle(0.9, True)
    for feed in FEEDS:
        before = averaged.weights()
        averaged.feed(feed)
        if math.isfinite(feed):
            expected.step(before, averaged.weights())
        averaged.check()
        expected.check(other.weights())


@pytest.mark.needs("float32_weights")
def test_weights_set_before_the_first_step_are_where_it_begins(harness, form):
    averaged = Averaged(harness, form)
    averaged.amp.load_master_weights(
        averaged.model, {name: array + 5 for name, array in averaged.amp.master_weights(averaged.model).items()}
    )
    assert bits(averaged.ema.weights()) == bits(averaged.amp.master_weights(averaged.model))
    for feed in (1.0, 2.0, INF, 1.0):
        averaged.feed(feed)
        averaged.check()


def test_an_unmoved_average_is_the_weights(harness):
    averaged = Averaged(harness)
    assert averaged.ema.updates == 0
    for name, array in averaged.weights().items():
        np.testing.assert_array_equal(averaged.ema.weights()[name], array.astype(np.float32))


@pytest.mark.needs("several_optimizers")
def test_each_average_moves_with_its_own_optimizer(harness, form):
    """A generator and a discriminator that trains more often; each skips by itself."""
    pair = Pair(harness, form)
    for gradient in (1.0, INF, 0.5):
        pair.train(1, gradient)
        pair.train(1, 2 * gradient)
        pair.train(0, 1.0 if gradient == 0.5 else gradient)
    for _ in range(3):
        pair.train(0, 1.0)
        pair.train(1, NAN)
    assert [ema.updates for ema in pair.emas] == [5, 4]


def test_one_optimizer_of_two_models(harness, form):
    """The average of one of them."""
    amp = session(harness, form, loss_scale=SCALE)
    with amp.scope():
        first, second = harness.probe([1.0]), harness.probe([2.0])
        optimizer = harness.sgd([first, second], 0.5)
    first, second, optimizer = amp.prepare(first, second, optimizer)
    ema, oracle = amp.ema(second, 0.5), AverageOracle(0.5)

    def step(x):
        amp.backward(lambda: first(x) + second(x), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for gradient in (1.0, 2.0, INF, 4.0, 1.0):
        before = harness.parameters(second)
        step(amp.to_native(np.float32([gradient])))
        if math.isfinite(gradient):
            oracle.step(before, harness.parameters(second))
        found = ema.weights()
        oracle.check({name: found[name] for name in oracle.values})


def test_every_weight_of_many_moves(harness, form):
    """Whatever moves averages in bunches moves those of the last one, too."""
    averaged = Averaged(harness, form, values=(1.0,) * 70)
    for gradient in (1.0, 2.0):
        before = averaged.weights()
        averaged.run.feed(*[gradient * place for place in range(70)])
        averaged.oracle.step(before, averaged.weights())
        averaged.check()
