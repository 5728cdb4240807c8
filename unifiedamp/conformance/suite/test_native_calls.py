"""The framework's own ``backward`` and ``step`` beside the session's: refused, or right; never wrong in silence."""

import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import session
from unifiedamp.conformance.suite.native_loop import (
    FEED,
    LR,
    SCALE,
    START,
    STEPPED,
    Loop,
    afterwards,
    inside,
    inside_and_through,
    instead,
)

pytestmark = pytest.mark.needs("context_form")


@pytest.mark.parametrize("place", [inside, inside_and_through, instead, afterwards])
def test_a_native_backward_of_the_unscaled_loss(harness, form, place):
    loop = Loop(harness, form)
    loop.refused(lambda loss: place(loop, loss), "backward()", "scaled_loss.backward()")


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("place", [inside, inside_and_through, instead, afterwards])
def test_a_native_backward_beside_master_weights(harness, policy, place):
    loop = Loop(harness, policy=harness.pure_policies[policy], master_weights=True)
    loop.refused(lambda loss: place(loop, loss), "backward()", "scaled_loss.backward()")


@pytest.mark.parametrize("call", ["unscale", "clip_grad_norm", "clip_grad_value"])
def test_gradients_of_a_native_backward_are_not_prepared_either(harness, call):
    """Whatever call of the step comes first refuses them."""
    loop = Loop(harness)
    arguments = () if call == "unscale" else (100.0,)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer):
            pass
        loop.native_backward(loss)
        getattr(loop.amp, call)(loop.optimizer, *arguments)
        raise AssertionError(f"amp.{call} took gradients of an unscaled loss")

    loop.refused(step, "backward()", "scaled_loss.backward()")


def test_it_is_refused_in_a_window_of_several_micro_batches(harness):
    """Without a scale the window's mean is lost all the same."""
    loop = Loop(harness, loss_scale="none", accumulate_steps=2)
    loop.run(loop.right)
    with pytest.raises(ua.StepOrderError, match=r"scaled_loss\.backward\(\)"):
        loop.run(lambda loss: inside(loop, loss))
    assert loop.weights() == list(START)
    loop.amp.discard_step(loop.optimizer)
    for feed in (FEED, (3.0, 0.0)):
        loop.run(loop.right, feed)
    assert loop.weights() == [9.0, 9.5]


def test_a_native_backward_before_the_loss_is_scaled(harness, form):
    """Its gradients are refused, or overwritten by those of the scaled loss."""
    loop = Loop(harness, form)

    def step(loss):
        with loop.amp.autocast():
            other = loop.model(loop.amp.to_native(np.array([5.0, 5.0], np.float32)))
        loop.native_backward(other)
        loop.right(loss)

    try:
        loop.run(step)
    except ua.StepOrderError:
        assert loop.weights() == list(START)
        loop.amp.discard_step(loop.optimizer)
        loop.run(loop.right)
    assert loop.weights() == STEPPED


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_native_step_while_a_scaled_loss_waits(harness, form, unscaled):
    loop = Loop(harness, form)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
            scaled_loss.backward()
        if unscaled:
            loop.amp.unscale(loop.optimizer)
        loop.native_step()

    loop.refused(step, "step()", "amp.step")


def test_every_native_call_while_a_scaled_loss_waits(harness):
    """Those that apply its gradients, and those that change them first."""
    for name in harness.native_calls(Loop(harness).optimizer):
        loop = Loop(harness)

        def step(loss, loop=loop, name=name):
            with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
                scaled_loss.backward()
            harness.native_calls(loop.optimizer)[name]()

        loop.refused(step, name.partition(" ")[0], "amp.step")


def test_the_step_can_be_ended_rightly_after_a_refused_native_step(harness):
    loop = Loop(harness)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
            scaled_loss.backward()
        with pytest.raises(ua.StepOrderError):
            loop.native_step()
        assert loop.amp.step(loop.optimizer).applied

    loop.run(step)
    assert loop.weights() == STEPPED


def test_a_loop_without_mistakes_is_left_alone(harness, form):
    """Several steps, two losses in one of them, a block whose backward pass comes after it."""
    loop = Loop(harness, form)

    def two(loss):
        for _ in range(2):
            with loop.amp.autocast():
                loss = loop.model(loop.amp.to_native(np.array(FEED, np.float32)))
            with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
                scaled_loss.backward()
        loop.amp.step(loop.optimizer)

    loop.run(loop.right)
    assert loop.weights() == STEPPED
    Loop.run(loop, loop.right)
    assert loop.weights() == [9.0, 8.0]
    loop.form = "eager"
    loop.run(two)
    assert loop.weights() == [8.0, 6.0]


@pytest.mark.parametrize("first", [False, True])
def test_a_loss_that_is_not_differentiated(harness, first):
    """Its block, the first or the second, adds nothing and refuses nothing; after the step it is the framework's."""
    loop, losses = Loop(harness), []

    def leave():
        with loop.amp.scale_loss(losses[0], loop.optimizer):
            pass

    def step(loss):
        with loop.amp.autocast():
            losses[:] = [loop.model(loop.amp.to_native(np.array(FEED, np.float32)))]
        if first:
            leave()
        with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
            scaled_loss.backward()
        if not first:
            leave()
        assert loop.amp.step(loop.optimizer).applied

    loop.run(step)
    assert loop.weights() == STEPPED
    loop.run(step)
    assert loop.weights() == [9.0, 8.0]
    loop.native_backward(losses[0])


def test_a_loss_is_the_frameworks_alone_after_its_step(harness):
    """Whether it can be differentiated again is up to the framework; the session no longer refuses it."""
    loop, losses = Loop(harness), []

    def step(loss):
        losses.append(loss)
        loop.right(loss)

    loop.run(step)
    try:
        loop.native_backward(losses[0])
    except ua.AmpError:
        raise
    except Exception:
        return  # the framework's own


def test_an_exception_of_the_users_passes(harness, form):
    loop = Loop(harness, form)

    def step(loss):
        with loop.amp.scale_loss(loss, loop.optimizer):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run(step)
    loop.amp.discard_step(loop.optimizer)
    loop.run(loop.right)
    assert loop.weights() == STEPPED


def test_a_closed_session_leaves_native_calls_alone(harness):
    loop = Loop(harness)
    loop.run(loop.right)
    with loop.amp.autocast():
        loss = loop.model(loop.amp.to_native(np.array(FEED, np.float32)))
    loop.amp.close()
    loop.native_backward(loss)
    loop.native_step()
    assert loop.weights() == [9.0, 8.0]


@pytest.mark.needs("several_optimizers")
def test_a_native_step_after_a_step_without_gradients(harness):
    """Nothing is left of a loss that did not reach an optimizer: its own step does what it does after any other."""

    def answer(reached):
        amp = session(harness, loss_scale=SCALE)
        models = [harness.probe(START) for _ in range(2)]
        *models, one, two = amp.prepare(*models, *[harness.sgd([model], LR) for model in models])
        x = amp.to_native(np.array(FEED, np.float32))
        amp.backward(lambda: models[reached](x), [one, two])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ua.StepWarning)
            assert [amp.step(each).applied for each in (one, two)][reached]
        try:
            with amp.autocast():
                loss = models[1](x)
            if not harness.native_backward(loss) or not harness.native_step(two):
                pytest.skip("the framework has no calls that train beside the session")
        except ua.StepOrderError:
            return "refused"
        return "trained"

    assert answer(0) == answer(1)
