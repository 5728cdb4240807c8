"""Errors at the places inside a call that only MXNet has: contexts, master weights, what is set for a time."""

import numpy as np
import pytest
from products import PURE, SCALE, START, product, session, trainer_of

import unifiedamp as ua
from unifiedamp.conformance.driver import settled_state
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet.mxnet_api import autograd, from_numpy, mx
from unifiedamp_mxnet.precision import autocast, casts
from unifiedamp_mxnet.training import backward as backward_passes
from unifiedamp_mxnet.training.gradients import GradientBuffer

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ONES = np.ones(4, np.float32)
SETTINGS = {"float32": {"policy": "float32", "master_weights": False}, "master weights": {"policy": PURE}}


class Stop(BaseException):
    """Not an ``Exception``, as Ctrl-C is none."""


def prepared(setting, contexts=None, **options):
    amp = session(**SETTINGS[setting], **options)
    model = product(contexts=contexts)
    return amp, *amp.prepare(model, trainer_of(model, "momentum", 0.125))


def backward(amp, model, trainers, contexts=CONTEXTS[:1], value=1.0):
    with amp.autocast():
        losses = [model(from_numpy(ONES * value, ctx)) for ctx in contexts]
    with amp.scale_loss(losses, trainers) as scaled:
        scaled.backward()


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_update_that_fails_on_the_second_context(setting):
    amp, model, trainer = prepared(setting, CONTEXTS)
    backward(amp, model, trainer, CONTEXTS)
    amp.step(trainer)
    before = trainer.optimizer.rescale_grad
    states = [dict(updater.states) for updater in trainer._updaters]
    first, second = trainer._updaters

    class Broken(type(second)):
        def __call__(self, *_arguments):
            raise Stop

    broken = Broken.__new__(Broken)
    vars(broken).update(vars(second))
    trainer._updaters = [first, broken]
    backward(amp, model, trainer, CONTEXTS)
    with pytest.raises(Stop):
        amp.step(trainer)
    trainer._updaters = [first, second]
    assert trainer.optimizer.rescale_grad == before == 1.0
    for updater, kept in zip(trainer._updaters, states, strict=True):
        assert all(updater.states[index] is state for index, state in kept.items())
    with pytest.raises(ua.StepOrderError, match="interrupted by Stop"):
        backward(amp, model, trainer, CONTEXTS)
    assert amp.gradients(trainer) == {}
    assert all(not grad.asnumpy().any() for grad in model.w.list_grad())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_backward_pass_that_fails_on_two_contexts(monkeypatch, setting, grad_req):
    amp, model, trainer = prepared(setting, CONTEXTS, accumulate_steps=2)
    model.w.grad_req = grad_req
    native = backward_passes.differentiate

    def fails_afterwards(*arguments):
        native(*arguments)
        raise Stop

    backward(amp, model, trainer, CONTEXTS)
    amp.step(trainer)
    monkeypatch.setattr(backward_passes, "differentiate", fails_afterwards)
    with pytest.raises(Stop):
        backward(amp, model, trainer, CONTEXTS[:1], 4.0)
    monkeypatch.undo()
    for contexts in (CONTEXTS, CONTEXTS[1:]):
        backward(amp, model, trainer, contexts, 2.0)
        outcome = amp.step(trainer)
    assert outcome.applied
    for ctx in CONTEXTS:
        np.testing.assert_allclose(model.w.data(ctx).asnumpy(), np.array(START) - 0.125 * 3, rtol=1e-3)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_window_that_was_set_aside_comes_back(monkeypatch, setting, moment):
    """The second Trainer's backward pass fails, having reached both models; the first one's window goes on."""
    amp = session(**SETTINGS[setting])
    models = [product(), product()]
    *models, one, other = amp.prepare(*models, *(trainer_of(model, "momentum", 0.125) for model in models))
    backward(amp, models[0], one)
    native = backward_passes.differentiate

    def fails(*arguments):
        if moment == "after":
            native(*arguments)
        raise Stop

    with amp.autocast():
        loss = models[0](from_numpy(ONES * 4, mx.cpu())) + models[1](from_numpy(ONES, mx.cpu()))
    monkeypatch.setattr(backward_passes, "differentiate", fails)
    with pytest.raises(Stop), amp.scale_loss(loss, other) as scaled:
        scaled.backward()
    monkeypatch.undo()
    assert amp.step(one).applied
    np.testing.assert_allclose(models[0].w.data().asnumpy(), np.array(START) - 0.125, rtol=1e-3)
    np.testing.assert_allclose(models[1].w.data().asnumpy(), np.array(START), rtol=1e-3)


@pytest.mark.parametrize("name", ["mark_stashed", "restore_gradients"])
@pytest.mark.parametrize("turn", range(2))
def test_a_window_that_was_being_set_aside_goes_on(monkeypatch, name, turn):
    """An interruption between two Trainers' windows, when they are set aside or brought back."""
    amp = session("float32", master_weights=False)
    models = [product(), product(), product()]
    *models, one, two, other = amp.prepare(*models, *(trainer_of(model, "sgd", 0.125) for model in models))
    for model, trainer in zip(models, (one, two), strict=False):
        backward(amp, model, trainer)
    native, left = getattr(GradientBuffer, name), [turn]

    def interrupted(*arguments, **options):
        left[0] -= 1
        if left[0] == -1:
            raise Stop
        return native(*arguments, **options)

    with amp.autocast():
        loss = sum(model(from_numpy(ONES * 4, mx.cpu())) for model in models)
    monkeypatch.setattr(GradientBuffer, name, interrupted)
    with pytest.raises(Stop), amp.scale_loss(loss, other) as scaled:
        scaled.backward()
    monkeypatch.undo()
    for trainer in (one, two):
        assert amp.step(trainer).applied
    for model, moved in zip(models, (0.125, 0.125, 0.0), strict=True):
        np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - moved, rtol=1e-6)


def test_a_loss_without_a_graph_spares_the_window(array):
    amp, model, trainer = prepared("float32", accumulate_steps=2)
    backward(amp, model, trainer)
    amp.step(trainer)
    for _ in range(2):
        with amp.autocast():
            pass
        with pytest.raises(ua.LossError, match="not connected"), amp.scale_loss(array([1.0]), trainer) as scaled:
            scaled.backward()
        amp.backward(lambda: model(array(ONES * 3)), trainer)
    assert amp.step(trainer).applied
    np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - 0.125 * 3.5, rtol=1e-6)


@pytest.mark.parametrize("region", ["autocast", "inference"])
@pytest.mark.parametrize("turn", range(4))
def test_a_region_that_is_interrupted_while_it_opens_or_closes(monkeypatch, region, turn):
    """The recording and training flags are set when it opens and when it closes."""
    harness, amp = load_harness("mxnet"), session("mixed_bfloat16", master_weights=False)
    before, left = settled_state(harness), [turn]
    native = {name: getattr(autograd, name) for name in ("set_recording", "set_training")}

    def interrupted(name):
        def run(flag):
            left[0] -= 1
            if left[0] == -1:
                raise Stop
            return native[name](flag)

        return run

    for name in native:
        monkeypatch.setattr(autocast.autograd, name, interrupted(name))
    with pytest.raises(Stop), getattr(amp, region)():
        pass
    monkeypatch.undo()
    assert harness.global_state() == before
    assert (casts.current.table, casts.current.stack) == (None, [])


def test_what_an_interrupted_step_found_does_not_update_the_scale(monkeypatch):
    """The first Trainer's step overflows and is interrupted after it was counted; the second one's is finite."""
    amp = session("float32", master_weights=False, loss_scale=SCALE)
    models = [product(), product()]
    *models, one, other = amp.prepare(*models, *(trainer_of(model, "sgd", 0.125) for model in models))
    native = amp.backend.training.step

    def interrupted(*arguments):
        native(*arguments)
        raise Stop

    for model, trainer, value in zip(models, (one, other), (np.inf, 1.0), strict=True):
        backward(amp, model, trainer, value=value)
    monkeypatch.setattr(amp.backend.training, "step", interrupted)
    with pytest.raises(Stop):
        amp.step(one)
    monkeypatch.undo()
    assert amp.step(other).applied
    assert amp.loss_scale == SCALE.initial_scale
