"""What gradient tapes keep, and when they forget it."""

import gc
import warnings
import weakref
from contextlib import nullcontext

import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import Spy, keras  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe, harness  # noqa: E402


@pytest.fixture
def trained():
    """A session, a probe and its optimizer."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=4.0)
    return (amp, *amp.prepare(Probe([1.0]), keras.optimizers.SGD(0.125)))


def weight(model):
    return float(model.ws[0].numpy()[0])


@pytest.mark.parametrize("strict", [False, True])
def test_forgotten_regions_are_told_of(strict):
    """Once; a strict session refuses each loss after them."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=4.0, strict=strict)
    model, optimizer = amp.prepare(Probe([1.0]), keras.optimizers.SGD(0.125))
    for _ in range(10):
        with amp.autocast():
            losses = [model(tf.ones(1)), model(tf.ones(1))]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for loss in losses:
            refused = pytest.raises(ua.StepOrderError) if strict else nullcontext()
            with refused, amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
    assert [each.category for each in told] == [ua.StepWarning] * (not strict)
    if not strict:
        amp.step(optimizer)
    assert weight(model) == (1.0 if strict else 0.75)


def test_a_backward_pass_inside_a_region_keeps_nothing_alive(trained):
    """It is not recorded for a second derivative."""
    amp, model, optimizer = trained
    made = []

    @tf.custom_gradient
    def doubled(x):
        def gradient(dy):
            between = tf.exp(x * 0.0) * 2.0
            made.append(weakref.ref(between))
            return dy * between

        return x * 2.0, gradient

    with amp.autocast():
        loss = doubled(model(tf.ones(1)))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        gc.collect()
        assert [each() for each in made] == [None]
    amp.step(optimizer)
    assert weight(model) == 0.75


def test_a_region_that_cannot_be_entered_changes_nothing(trained, monkeypatch):
    amp, model, optimizer = trained
    spy = Spy()
    spied = amp.prepare(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), spy]))
    spied(tf.ones((1, 1)))
    before = harness.global_state(), spy.seen[-1]

    def fail(_):
        raise MemoryError

    with monkeypatch.context() as changed:
        changed.setattr(tf.GradientTape, "__enter__", fail)
        with pytest.raises(MemoryError), amp.autocast():
            pass
    spied(tf.ones((1, 1)))
    assert (harness.global_state(), spy.seen[-1]) == before
    amp.backward(lambda: model(tf.ones(1)), optimizer)
    assert amp.step(optimizer).applied
    assert weight(model) == 0.875


@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_a_function_of_ones_own_are_not_applied_outside(trained, again):
    """Also when a loss outside follows: the step is refused until the window is dropped."""
    amp, model, optimizer = trained

    @tf.function(autograph=False)
    def backward(x):
        amp.backward(lambda: model(x), optimizer)

    backward(tf.ones(1))
    if again:
        amp.backward(lambda: model(tf.ones(1)), optimizer)
    with pytest.raises(ua.StepOrderError, match="in another compiled function"):
        amp.step(optimizer)
    amp.discard_step(optimizer)
    assert weight(model) == 1.0
    amp.backward(lambda: model(tf.ones(1)), optimizer)
    assert amp.step(optimizer).applied
    assert weight(model) == 0.875


@pytest.mark.parametrize("inside", [False, True])
def test_a_loss_of_an_iteration_that_has_ended_trains_nothing(trained, inside):
    """Whether its step was in the region or after it."""
    amp, model, optimizer = trained

    def step(loss):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)

    with amp.autocast():
        loss = model(tf.ones(1))
        if inside:
            step(loss)
    if not inside:
        step(loss)
    for _ in range(2):
        with amp.autocast():
            fresh = model(tf.ones(1))
    with pytest.raises(ua.LossError, match="scale it before the next step"):
        step(loss)
    assert weight(model) == 0.875
    step(fresh)
    assert weight(model) == 0.75
