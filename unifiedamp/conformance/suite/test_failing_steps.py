"""Steps that fail in the user's own code: only means of whole micro-batches are applied afterwards."""

import contextlib

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.suite.test_interrupted import LR, Interrupted, Interrupter, fail


def test_a_batch_that_does_not_fit(harness, form):
    """The model raises in the second micro-batch of three: the window begins anew or goes on, whole either way."""
    amp = session(harness, form, loss_scale=64.0, accumulate_steps=3)
    model = harness.mlp([(np.zeros((2, 1), np.float32), np.zeros(1, np.float32))])
    model, optimizer = amp.prepare(model, harness.sgd([model], LR))

    def step(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    targets = (2.0, 4.0, 8.0, 16.0)
    for place, target in enumerate(targets):
        batch = amp.to_native(np.zeros((1, 2), np.float32)), amp.to_native(np.float32([[target]]))
        step(*batch)
        if place == 0:
            with pytest.raises(Exception) as caught:
                step(amp.to_native(np.zeros((1, 5), np.float32)), batch[1])
            assert not isinstance(caught.value, ua.StepOrderError)
    (bias,) = [float(value[0]) for value in harness.parameters(model).values() if value.size == 1]
    assert any(bias == pytest.approx(LR * 2 * np.mean(window)) for window in (targets[:3], targets[1:]))
    assert amp.applied_steps == 1


def test_an_exception_between_the_calls_of_a_step(harness, form):
    """In eager steps the gradients stay, so that the loop may go on; of a step that was not run there are none."""
    amp = session(harness, form, loss_scale=64.0)
    model = harness.probe([10.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], LR))

    def stepper(fails):
        def step(x):
            amp.backward(lambda: model(x), optimizer)
            if fails:
                raise KeyError("mine")
            amp.step(optimizer)

        return compiled(amp, form, step)

    good, bad = stepper(False), stepper(True)
    one, two, four, eight = (amp.to_native(np.float32([gradient])) for gradient in (1.0, 2.0, 4.0, 8.0))
    good(one)
    with pytest.raises(KeyError, match="mine"):
        bad(two)
    good(four)
    good(eight)
    (found,) = harness.parameters(model).values()
    expected = [10.0 - LR * total for total in ((15.0,) if form.startswith("eager") else (13.0, 15.0))]
    assert any(float(found[0]) == pytest.approx(value, rel=1e-6) for value in expected)
    assert amp.applied_steps == 3


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("call", ["backward", "unscale", "clip_grad_norm", "clip_grad_value", "step"])
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_an_interrupted_call_of_one_optimizer_leaves_the_other_as_far_as_it_was(harness, call, clip):
    """Which was unscaled and clipped already."""
    amp = session(harness, loss_scale=64.0)
    models = [harness.probe([10.0]), harness.probe([10.0])]
    *models, a, b = amp.prepare(*models, *[harness.sgd([model], LR) for model in models])
    one, two = (amp.to_native(np.float32([value])) for value in (1.0, 2.0))
    for x in (one, two):
        amp.backward(lambda: models[0](x), a)  # noqa: B023
        if call != "backward":
            amp.backward(lambda: models[1](one), b)
        amp.clip_grad_norm(a, clip)
        if x is two:
            Interrupter(amp, call, 1, True, fail)
        with contextlib.nullcontext() if x is one else pytest.raises(Interrupted):
            if call == "backward":
                amp.backward(lambda: models[1](one), b)
            amp.unscale(b)
            amp.clip_grad_norm(b, 100.0)
            amp.clip_grad_value(b, 100.0)
            amp.step(b)
        assert amp.step(a).applied
    moved = min(clip, 1.0) + min(clip, 2.0)
    assert harness.parameters(models[0])["w0"][0] == pytest.approx(10.0 - LR * moved, rel=1e-5)


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("accumulate_steps", [1, 2])
def test_an_interrupted_loss_of_two_optimizers_leaves_neither_a_gradient(harness, accumulate_steps):
    """Its backward pass fails when both have their gradients; the next loss reaches each of them alone."""
    amp = session(harness, loss_scale=64.0, accumulate_steps=accumulate_steps)
    models = [harness.probe([10.0]), harness.probe([10.0])]
    *models, a, b = amp.prepare(*models, *[harness.sgd([model], LR) for model in models])
    x = amp.to_native(np.ones(1, np.float32))
    Interrupter(amp, "backward", 1, True, fail)
    with pytest.raises(Interrupted):
        amp.backward(lambda: models[0](x) + models[1](x), [a, b])
    assert amp.gradients(a) == amp.gradients(b) == {}
    for _ in range(accumulate_steps):
        for model, optimizer in zip(models, (a, b), strict=True):
            amp.backward(lambda model=model: model(x), optimizer)
            result = amp.step(optimizer)
            assert result.applied or result.reason == "accumulating"
    assert [harness.parameters(model)["w0"][0] for model in models] == [10.0 - LR, 10.0 - LR]
