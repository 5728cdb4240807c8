"""Errors at run time of a traced step: where it failed decides what becomes of the session."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402


class Failing(keras.optimizers.SGD):
    """Fails at the second variable while ``broken`` holds."""

    def __init__(self):
        super().__init__(0.5)
        self.broken = tf.Variable(False, trainable=False)

    def update_step(self, gradient, variable, *rest):
        fails = tf.logical_and("w1" in variable.name, self.broken)
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(fails), ["the update failed"])]):
            super().update_step(tf.identity(gradient), variable, *rest)


def run_of(accumulate=1, optimizer=None):
    amp = ua.Amp("tensorflow", "float32", loss_scale=1024.0, accumulate_steps=accumulate)
    model, optimizer = amp.prepare(Probe([0.0, 0.0]), optimizer or keras.optimizers.SGD(0.5))

    @amp.compile
    def step(x, good):
        amp.backward(lambda: model(x), optimizer)
        with tf.control_dependencies([tf.debugging.Assert(good, ["the step failed"])]):
            amp.clip_grad_norm(optimizer, 1e6)
        amp.step(optimizer)

    def feed(*gradients, good=True):
        step(tf.constant(gradients), tf.constant(good))
        return [float(weight.numpy()[0]) for weight in model.ws]

    return amp, optimizer, feed


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_failure_before_the_update(accumulate):
    amp, _, feed = run_of(accumulate)
    for _ in range(2 * accumulate):
        before = feed(2.0, 4.0)
    assert before == [-2.0, -4.0]
    for _ in range(accumulate - 1):
        feed(100.0, 100.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        feed(100.0, 100.0, good=False)
    for _ in range(accumulate):
        after = feed(2.0, 4.0)
    assert after == [-3.0, -6.0]
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (3, 0, 1024.0)


def test_a_step_that_was_finished_before_the_failure_moves_no_scale():
    """The whole call is given up, and with it what the first optimizer's gradients were found to be."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=ua.DynamicLossScale(initial_scale=1024.0))
    models, optimizers = [Probe([0.0]), Probe([0.0])], [keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5)]
    *models, first, second = amp.prepare(*models, *optimizers)

    @amp.compile
    def step(x, good):
        for model, optimizer in zip(models, (first, second), strict=True):
            amp.backward(lambda model=model: model(x), optimizer)
        amp.step(first)
        with tf.control_dependencies([tf.debugging.Assert(good, ["the step failed"])]):
            amp.clip_grad_norm(second, 1e6)
        amp.step(second)

    step(tf.constant([2.0]), tf.constant(True))
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant([np.inf]), tf.constant(False))
    assert amp.loss_scale == 1024.0
    step(tf.constant([2.0]), tf.constant(True))
    assert [float(model.ws[0].numpy()[0]) for model in models] == [-2.0, -2.0]
    assert (amp.applied_steps, amp.loss_scale) == (4, 1024.0)


def test_a_failure_within_the_update_is_refused_until_it_is_discarded():
    amp, optimizer, feed = run_of(optimizer=Failing())
    inner = optimizer.inner_optimizer
    assert feed(2.0, 4.0) == [-1.0, -2.0]
    inner.broken.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the update failed"):
        feed(2.0, 4.0)
    inner.broken.assign(False)
    for _ in range(2):
        with pytest.raises(ua.StepOrderError, match=r"amp\.discard_step"):
            feed(2.0, 4.0)
    amp.discard_step(optimizer)
    feed(2.0, 4.0)
    np.testing.assert_array_equal(feed(0.0, 0.0), feed(0.0, 0.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the step failed"):
        feed(2.0, 4.0, good=False)
    before = feed(0.0, 0.0)  # what was discarded is not held against a failure that updated nothing
    assert feed(2.0, 4.0) == [before[0] - 1.0, before[1] - 2.0]


def test_fit_that_fails_leaves_nothing_for_a_loop():
    """``fit`` runs eagerly, and its update fails; the loop after it applies its own gradients alone."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=1024.0)
    model, optimizer = amp.prepare(Probe([0.0, 0.0]), Failing())
    model.compile(optimizer=optimizer, loss=lambda target, output: output, run_eagerly=True)
    optimizer.inner_optimizer.broken.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the update failed"):
        model.fit(np.float32([3.0, 3.0]), np.float32([0.0, 0.0]), batch_size=2, verbose=0)
    optimizer.inner_optimizer.broken.assign(False)
    before = [float(weight.numpy()[0]) for weight in model.ws]
    amp.backward(lambda: model(tf.constant([2.0, 4.0])), optimizer)
    assert amp.step(optimizer).applied
    after = [float(weight.numpy()[0]) for weight in model.ws]
    np.testing.assert_allclose(np.subtract(after, before), [-1.0, -2.0], rtol=1e-6)
