"""Float32 master weights: what 16 bits would lose is kept, and what is skipped, saved and loaded is kept too."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

POLICIES = ["float16", "bfloat16"]
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
TINY = 2.0**-13
"""A step from 1 that both 16-bit formats round away, and float32 does not."""
FINE = 1.0 + 2.0**-12
"""A weight that both round."""


def run_of(harness, form, policy, **options):
    """A probe of weight 1 under SGD with learning rate 2**-13: each gradient of 1 takes ``TINY`` away."""
    return probe_run(
        harness,
        form,
        **{"policy": harness.pure_policies[policy], "lr": TINY, "master_weights": True, "loss_scale": SCALE} | options,
    )


def prepared(harness, policy, *objects):
    """A session, and what it prepared; a framework whose layers take their dtypes when they are made may refuse."""
    amp = session(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE)
    try:
        return amp, amp.prepare(*objects)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")


def masters(run):
    return [float(value[0]) for value in run.amp.master_weights(run.model).values()]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_tiny_updates_survive(harness, form, policy):
    run = run_of(harness, form, policy)
    for _ in range(24):
        run.feed(1.0)
    assert masters(run) == [1.0 - 24 * TINY]
    assert run.weights() == [float(np.float16(1.0 - 24 * TINY)) if policy == "float16" else 1.0 - 2.0**-8]
    assert run.amp.applied_steps == 24


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_each_parameter_is_its_rounded_master(harness, form, policy):
    """After every step, whether it was applied or not."""
    run = run_of(harness, form, policy, values=(1.0, -2.0, 3.0), lr=0.0625)
    for step, feed in enumerate([(1.0, -2.0, 3.0), (0.5, math.inf, 1.0), (-1.0, 3.0, 0.25)]):
        run.feed(*feed)
        found = masters(run)
        assert run.weights() == pytest.approx(found, rel=2.0**-8)
        assert found == [
            (w - 0.0625 * g)
            for w, g in zip((1.0, -2.0, 3.0), ((1.0, -2.0, 3.0), (0.0, 1.0, 3.25))[step // 2], strict=True)
        ]


@pytest.mark.parametrize("policy", POLICIES)
def test_tiny_updates_are_lost_without(harness, form, policy):
    run = run_of(harness, form, policy, values=(FINE,), master_weights=False, loss_scale=None)
    if run.weights() == [FINE]:
        pytest.skip("this backend keeps parameters in float32")
    for _ in range(24):
        run.feed(1.0)
    assert run.weights() == [1.0]


@pytest.mark.needs("master_weights", "loss_scaling")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_skip_leaves_masters_alone(harness, form, policy):
    run = run_of(harness, form, policy)
    for gradient in (1.0, 1.0, math.inf, math.nan):
        run.feed(gradient)
    assert masters(run) == [1.0 - 2 * TINY]
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (2, 2, 1.0)
    run.feed(1.0)
    assert masters(run) == [1.0 - 3 * TINY]


@pytest.mark.needs("master_weights", "accumulation")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_adds_up_in_float32(harness, form, policy):
    run = run_of(harness, form, policy, accumulate_steps=2, lr=0.5)
    run.feed(2.0)
    run.feed(2.0**-11)
    assert masters(run) == [1.0 - 0.5 * (1.0 + 2.0**-12)]


@pytest.mark.needs("master_weights", "accumulation")
@pytest.mark.parametrize("size", [2.0**-40, 2.0**40])
def test_a_window_of_bfloat16_has_the_range_of_float32(harness, form, size):
    """Float16 holds none of these gradients."""
    run = run_of(harness, form, "bfloat16", accumulate_steps=2, lr=1.0 / size, loss_scale="none")
    for gradient in (0.25, 0.5, 1.0, -0.5):
        run.feed(gradient * size)
    assert masters(run) == [1.0 - 0.375 - 0.25]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_clipping_sees_true_float32_gradients(harness, policy):
    seen = []

    def clip(amp, optimizer):
        amp.unscale(optimizer)
        seen.extend(harness.dtype_of(gradient) for gradient in amp.gradients(optimizer).values())
        amp.clip_grad_norm(optimizer, 2.5)

    run = run_of(harness, "eager", policy, values=(1.0, 1.0), lr=2.0**-9, clip=clip)
    run.feed(3.0, 4.0)
    assert seen == ["float32"] * 2
    np.testing.assert_allclose(masters(run), [1.0 - 1.5 * 2.0**-9, 1.0 - 2.0 * 2.0**-9], rtol=2.0**-22)


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_saved_and_loaded_goes_on_bit_for_bit(harness, form, policy):
    gradients = [1.0, 0.125, math.inf, 0.75, 1.0, 0.5]
    straight = run_of(harness, form, policy)
    first, second = run_of(harness, form, policy), run_of(harness, form, policy, values=(7.0,))
    for index, gradient in enumerate(gradients):
        straight.feed(gradient)
        if index == 3:
            second.amp.load_state_dict(first.amp.state_dict())
            second.amp.load_master_weights(second.model, first.amp.master_weights(first.model))
        (first if index < 3 else second).feed(gradient)
    assert masters(second) == masters(straight)
    assert second.weights() == straight.weights()
    assert second.amp.state_dict()["state"] == straight.amp.state_dict()["state"]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_masters_begin_from_the_float32_values_of_a_model(harness, policy):
    """Of one made before the session, which 16 bits would round."""
    model = harness.probe([FINE])
    amp, (model, optimizer) = prepared(harness, policy, model, harness.sgd([model], TINY))
    x = amp.to_native(np.float32([1.0]))
    for taken in range(2):
        assert [float(value[0]) for value in amp.master_weights(model).values()] == [FINE - taken * TINY]
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_weights_that_no_optimizer_trains_yet_are_those_of_the_model(harness, policy):
    """Of a model that was prepared alone: float32 values come back, and its masters begin from them later."""
    amp, model = prepared(harness, policy, harness.probe([FINE]))
    assert [float(value[0]) for value in amp.master_weights(model).values()] == [FINE]
    amp.prepare(harness.sgd([model], TINY))
    assert [float(value[0]) for value in amp.master_weights(model).values()] == [FINE]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("through", ["reading", "swapping", "training"])
def test_masters_follow_parameters_that_are_set(harness, policy, through):
    """Natively, as loading the model's own weights does: what is read, put back and trained is the new value."""
    if not harness.masters_follow_parameters:
        pytest.skip("amp.load_master_weights sets parameters here: others that are set do not last")
    run = run_of(harness, "eager", policy, lr=0.25)
    ema = run.amp.ema(run.model, 0.5) if through == "swapping" else None
    run.feed(1.0)
    harness.set_parameters(run.model, {name: value * 0 + 8.0 for name, value in harness.parameters(run.model).items()})
    if ema is not None:
        with ema.swapped():
            assert masters(run) != [8.0]
    if through == "training":
        run.feed(1.0)
        assert (masters(run), run.weights()) == ([7.75], [7.75])
    else:
        assert (masters(run), run.weights()) == ([8.0], [8.0])


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", POLICIES)
def test_swapped_averages_leave_masters_to_the_last_bit(harness, policy):
    """They hold more than the parameters do, in steps after too."""
    run = run_of(harness, "eager", policy)
    ema = run.amp.ema(run.model, 0.5)
    for taken in range(1, 4):
        run.feed(1.0)
        with ema.swapped():
            pass
        assert masters(run) == [1.0 - taken * TINY]


def test_refused_where_parameters_are_their_own_masters(harness):
    with pytest.raises(ua.PolicyError, match="its parameters are float32"):
        ua.Amp(harness.backend, "mixed_bfloat16", master_weights=True)
