"""Clipping: of true gradients, once or several times, at any size, and of nothing that is skipped."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.conformance.float8 import BFLOAT16

INF = math.inf


def dynamic(**changes):
    return ua.DynamicLossScale(**{"initial_scale": 4.0, "growth_interval": 100, **changes})


def by_norm(limit):
    return lambda amp, optimizer: amp.clip_grad_norm(optimizer, limit)


def clipped_once(harness, gradients, limit, lr=1.0, **options):
    """Return the norm that was told and the weights, from 0, after one clipped step."""
    amp = session(harness, **options)
    model = harness.probe((0.0,) * len(gradients))
    model, optimizer = amp.prepare(model, harness.sgd([model], lr))
    x = amp.to_native(np.float32(gradients))
    amp.backward(lambda: model(x), optimizer)
    norm = amp.clip_grad_norm(optimizer, limit)
    assert amp.step(optimizer).applied
    weights = [float(value[0]) for value in harness.parameters(model).values()]
    return float(np.ravel(amp.to_numpy(norm))[0]), weights


@pytest.mark.parametrize("scale", [1.0, 1024.0, "none"])
def test_what_is_small_enough_stays(harness, scale):
    norm, weights = clipped_once(harness, (0.3, 0.4), 0.75, loss_scale=scale)
    assert norm == pytest.approx(0.5, rel=1e-5)
    assert weights == pytest.approx([-0.3, -0.4], rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1024.0, "none"])
def test_gradients_of_zero_stay(harness, scale):
    norm, weights = clipped_once(harness, (0.0, 0.0), 1.0, loss_scale=scale)
    assert (norm, weights) == (0.0, [0.0, 0.0])


@pytest.mark.parametrize("scale", [1.0, 4.0, "none"])
@pytest.mark.parametrize("size", [2.0**80, 2.0**120])
@pytest.mark.parametrize("signs", [(1.0, -1.0), (-1.0, -1.0)], ids=["mixed", "negative"])
def test_a_norm_whose_squares_overflow(harness, scale, size, signs):
    """Every gradient is finite, and so is the norm: the step is applied, clipped as any other."""
    gradients = (3.0 * size * signs[0], 4.0 * size * signs[1])
    norm, weights = clipped_once(harness, gradients, 2.0, loss_scale=scale)
    assert norm == pytest.approx(5.0 * size, rel=1e-5)
    assert weights == pytest.approx([-1.2 * signs[0], -1.6 * signs[1]], rel=1e-5)


def test_gradients_of_bfloat16_are_scaled_by_a_float32_factor(harness):
    """A factor of 8 bits is off by up to 2**-9; each gradient is rounded to the nearest number, or not at all."""
    gradients = BFLOAT16.round(np.random.default_rng(0).uniform(1.0, 2.0, 64))
    norm, limit = float(np.linalg.norm(gradients)), 257 / 256
    amp = session(harness, policy=harness.pure_policies["bfloat16"], loss_scale="none")
    with amp.scope():
        model = harness.probe((1.0,) * len(gradients))
        optimizer = harness.sgd([model], 1.0)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(np.float32(gradients))
    amp.backward(lambda: model(x), optimizer)
    amp.clip_grad_norm(optimizer, limit)
    found = sorted(float(np.float32(amp.to_numpy(value)).ravel()[0]) for value in amp.gradients(optimizer).values())
    expected = np.sort(gradients) * (limit / norm)
    half = 2.0 ** (np.floor(np.log2(expected)) - 8)
    assert (np.abs(found - expected) <= half * (1 + 2.0**-10)).all()


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("largest", [2.0**66, 2.0**126])
def test_a_norm_of_which_one_gradient_overflows(harness, place, largest):
    """The others are small, and what is left of them is nothing."""
    gradients = [1.0, -2.0, 0.5]
    gradients[place] = -largest
    norm, weights = clipped_once(harness, gradients, 2.0, loss_scale="none")
    assert norm == pytest.approx(largest, rel=1e-5)
    assert weights == pytest.approx([2.0 if index == place else 0.0 for index in range(3)], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("scale", [1024.0, "none"])
@pytest.mark.parametrize("size", [2.0**-10, 2.0**-4, 1.0, 2.0**10])
@pytest.mark.parametrize("times", [1.0625, 4.0])
def test_a_norm_is_brought_to_the_limit_whatever_their_sizes(harness, scale, size, times):
    """A norm of ``times`` the limit; both may be below 1. Frameworks add up to 1e-6 to the norm that they divide by."""
    norm, weights = clipped_once(harness, (3.0 * size, -4.0 * size), 5.0 * size / times, loss_scale=scale)
    assert norm == pytest.approx(5.0 * size, rel=1e-5)
    assert weights == pytest.approx([-3.0 * size / times, 4.0 * size / times], rel=1e-3)


def test_a_sum_that_overflows_is_no_overflow(harness, form):
    """float32 holds each gradient, and not what they add up to."""
    run = probe_run(harness, form, values=(0.0,) * 8, lr=2.0**-123, loss_scale=1.0)
    run.feed(*(2.0**126,) * 8)
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (1, 0)
    assert run.weights() == pytest.approx([-8.0] * 8, rel=1e-6)


def test_a_sum_within_one_gradient_that_overflows_is_no_overflow(harness, form):
    """Eight elements of 2**126, in one matrix."""
    amp = session(harness, form, loss_scale=1.0)
    model = harness.mlp([(np.zeros((8, 1), np.float32), np.zeros(1, np.float32))])
    model, optimizer = amp.prepare(model, harness.sgd([model], 2.0**-123))
    x, y = (amp.to_native(np.full(shape, value, np.float32)) for shape, value in (((1, 8), 2.0**120), ((1, 1), -32.0)))

    def step(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    compiled(amp, form, step)(x, y)
    assert (amp.applied_steps, amp.skipped_steps) == (1, 0)
    found = np.concatenate([np.ravel(value) for value in harness.parameters(model).values()])
    assert sorted(found.tolist()) == pytest.approx([-8.0] * 8 + [0.0], abs=1e-6)


@pytest.mark.parametrize("bad", [INF, -INF, math.nan])
def test_a_skipped_step_is_not_clipped_into_the_weights(harness, form, bad):
    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(), clip=by_norm(1.0))
    run.feed(1.0, bad)
    assert run.weights() == [1.0, 1.0]
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (0, 1, 2.0)
    run.feed(3.0, 4.0)
    assert run.weights() == pytest.approx([1.0 - 0.06, 1.0 - 0.08], abs=1e-6)


def test_both_kinds_one_after_the_other(harness, form):
    """(6, 8, 1) clamped to (2, 2, 1) has a norm of 3; clipping again by what holds already changes nothing."""

    def clip(amp, optimizer):
        amp.clip_grad_value(optimizer, 2.0)
        amp.clip_grad_norm(optimizer, 1.5)
        amp.clip_grad_value(optimizer, 2.0)
        amp.clip_grad_norm(optimizer, 1.5)

    run = probe_run(harness, form, values=(1.0,) * 3, loss_scale=dynamic(), clip=clip)
    run.feed(6.0, 8.0, 1.0)
    assert run.weights() == pytest.approx([0.9, 0.9, 0.95], abs=1e-5)


@pytest.mark.needs("accumulation")
def test_each_window_is_clipped_by_itself(harness, form):
    """Clipping is asked for after each micro-batch, and done at the end of each window, to the mean."""

    def clip(amp, optimizer):
        amp.unscale(optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.clip_grad_value(optimizer, 0.75)

    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(), accumulate_steps=2, clip=clip)
    for gradients in ((6.0, 0.0), (0.0, 8.0), (0.2, 0.0), (0.0, 0.4)):
        run.feed(*gradients)
    assert run.weights() == pytest.approx([1.0 - 0.06 - 0.01, 1.0 - 0.075 - 0.02], abs=1e-5)
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (2, 0)


@pytest.mark.needs("accumulation")
def test_inside_a_window_clipping_returns_nothing(harness):
    amp = session(harness, loss_scale=dynamic(), accumulate_steps=2)
    model = harness.probe((1.0,))
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x, norms = amp.to_native(np.float32([6.0])), []
    for _ in range(4):
        amp.backward(lambda: model(x), optimizer)
        norms.append(amp.clip_grad_norm(optimizer, 1.0))
        amp.step(optimizer)
    assert [norm is None for norm in norms] == [True, False, True, False]
    assert [float(np.ravel(amp.to_numpy(norm))[0]) for norm in norms[1::2]] == pytest.approx([6.0, 6.0], rel=1e-5)


def test_a_clip_after_a_discarded_one(harness):
    """What was unscaled and dropped leaves nothing: the next gradients are unscaled anew."""
    amp = session(harness, loss_scale=dynamic())
    model = harness.probe((1.0,))
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    for gradient in (8.0, 6.0):
        x = amp.to_native(np.float32([gradient]))
        amp.backward(lambda x=x: model(x), optimizer)
        norm = amp.clip_grad_norm(optimizer, 2.0)
        assert float(np.ravel(amp.to_numpy(norm))[0]) == pytest.approx(gradient, rel=1e-5)
        if gradient == 8.0:
            amp.discard_step(optimizer)
    assert amp.step(optimizer).applied
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.8], abs=1e-5)


@pytest.mark.needs("several_devices")
@pytest.mark.parametrize("scale", [4.0, 1.0])
@pytest.mark.parametrize("gradients", [((3.0, 4.0), (3.0, 4.0)), ((3.0, 0.0), (0.0, 4.0))], ids=["alike", "apart"])
def test_devices_clip_what_they_apply(harness, gradients, scale):
    """Whether gradients are summed or not: what each device applies has the norm asked for."""
    moved = 1.0 - np.array(harness.clipped_device_run(gradients, 0.5, dynamic(initial_scale=scale)))
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), [0.05, 0.05], rtol=1e-4)
    if gradients[0] == gradients[1]:
        np.testing.assert_allclose(moved, [[0.03, 0.04]] * 2, rtol=1e-4)


@pytest.mark.needs("several_devices")
def test_what_a_limit_lets_through_is_the_true_gradient_on_each_device(harness):
    """Its own, or the sum over both devices."""
    moved = 1.0 - np.array(harness.clipped_device_run(((3.0, 4.0), (3.0, 4.0)), 100.0, dynamic()))
    times = moved / [0.3, 0.4]
    assert times[0, 0] == pytest.approx(1.0, rel=1e-5) or times[0, 0] == pytest.approx(2.0, rel=1e-5)
    np.testing.assert_allclose(times, times[0, 0], rtol=1e-5)
