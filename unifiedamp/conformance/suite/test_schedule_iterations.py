"""What counts as an iteration of a schedule: skipped, discarded, of several micro-batches or optimizers."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled
from unifiedamp.conformance.suite.scheduled import (
    AT,
    STEPS,
    Training,
    assert_close,
    assert_same,
    batches,
    restarted,
    runs_here,
    two_of,
)  # fmt: skip


@pytest.mark.needs("policy_schedule", "loss_scaling")
def test_a_skipped_iteration_counts_and_changes_nothing(harness, form):
    """The last one before the switch, and the first one after it."""
    second, scale = runs_here(harness, "mixed_bfloat16"), ua.DynamicLossScale(initial_scale=8.0, growth_interval=100)
    run = Training(harness, form, schedule={0: "float32", AT: second}, loss_scale=scale)
    data = batches()
    for bad in (AT - 1, AT):
        data[bad] = (np.full_like(data[bad][0], math.inf), data[bad][1])
    run.feed(*data[: AT - 1])
    before = run.weights()
    found = run.feed(*data[AT - 1 : AT + 1])
    assert [each.compute_dtype for each in found] == ["float32", second.compute_dtype], "skipped ones count"
    assert_same(run.weights(), before)
    assert (run.amp.skipped_steps, run.amp.loss_scale) == (2, 2.0)
    run.feed(*data[AT + 1 :])
    good = data[: AT - 1] + data[AT + 1 :]
    parts = ("float32", AT - 1), (second, STEPS - AT - 1)
    same = assert_close if form in harness.forms_that_warm_up else assert_same
    same(run.weights(), restarted(harness, form, good, *parts, loss_scale=scale))


@pytest.mark.needs("policy_schedule", "loss_scaling", "accumulation")
def test_the_scale_begins_anew_after_whole_windows(harness, form):
    """Iterations are windows; a policy that needs a scale follows one that needs none."""
    scale = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)
    low = runs_here(harness, "mixed_bfloat16").replace(loss_scale=scale)
    run = Training(harness, form, schedule={0: "float32", AT: low}, accumulate_steps=2)
    assert run.amp.loss_scale_settings == scale
    found = []
    data = batches(2 * STEPS)
    for pair in zip(data[::2], data[1::2], strict=True):
        found.append((run.amp.policy.compute_dtype, run.amp.loss_scale))
        run.feed(*pair)
    assert found == list(zip(["float32"] * 3 + ["bfloat16"] * 3, [8.0, 8.0, 16.0] * 2, strict=True))
    assert run.amp.applied_steps == STEPS


@pytest.mark.needs("policy_schedule", "loss_scaling", "several_optimizers")
def test_the_scale_begins_anew_within_an_iteration(harness):
    """What the first optimizer's step found before the switch does not make it back off after the second one's."""
    scale = ua.DynamicLossScale(initial_scale=8.0, growth_interval=100)
    low = runs_here(harness, "mixed_bfloat16").replace(loss_scale=scale)
    amp = ua.Amp(harness.backend, schedule={0: "float32", 1: low})
    models, optimizers = two_of(harness, amp)
    ((x, y),) = batches(1)
    target = amp.to_native(y)
    for index, factor in ((0, 1.0), (0, math.inf), (1, 1.0)):
        rows = amp.to_native(x * np.float32(factor))
        amp.backward(lambda model=models[index], rows=rows: harness.mean_square(model(rows), target), optimizers[index])
        amp.step(optimizers[index])
    assert (amp.policy, amp.loss_scale, amp.applied_steps, amp.skipped_steps) == (low, 8.0, 2, 1)


@pytest.mark.needs("policy_schedule", "several_optimizers")
@pytest.mark.parametrize(("at", "lows"), [(1, 5), (2, 4), (3, 2)])
def test_an_iteration_of_several_optimizers_counts_once(harness, at, lows):
    """As in a GAN: the second of two steps of one optimizer begins an iteration, which the other one's step ends."""
    low = runs_here(harness, "mixed_bfloat16")
    amp = ua.Amp(harness.backend, schedule={0: "float32", at: low})
    models, optimizers = two_of(harness, amp)
    ((x, y),) = batches(1)
    inputs, found = (amp.to_native(x), amp.to_native(y)), []
    for index in (0, 0, 1, 0, 0, 1):
        model = models[index]
        amp.backward(lambda model=model: harness.mean_square(model(inputs[0]), inputs[1]), optimizers[index])
        amp.step(optimizers[index])
        found.append(amp.policy.compute_dtype)
    assert found == ["float32"] * (6 - lows) + ["bfloat16"] * lows


@pytest.mark.needs("policy_schedule", "several_optimizers", "accumulation")
def test_a_window_ends_under_the_policy_that_it_began_under(harness):
    """Of one optimizer, while the iterations of another end."""
    low = runs_here(harness, "mixed_bfloat16")
    amp = ua.Amp(harness.backend, schedule={0: "float32", 1: low}, accumulate_steps=2)
    models, optimizers = two_of(harness, amp)
    ((x, y),) = batches(1)
    inputs, found = (amp.to_native(x), amp.to_native(y)), []

    def loss(model):
        found.append(amp.policy.compute_dtype)
        return harness.mean_square(model(inputs[0]), inputs[1])

    for index in (0, 1, 1, 1, 0, 1, 0):
        amp.backward(lambda model=models[index]: loss(model), optimizers[index])
        amp.step(optimizers[index])
    assert found == ["float32"] * 6 + ["bfloat16"]


@pytest.mark.needs("policy_schedule")
def test_a_discarded_iteration_counts(harness):
    run = Training(harness, "eager", schedule={0: "float32", 1: runs_here(harness, "mixed_bfloat16")})
    ((x, y),) = batches(1)
    run.amp.discard_step(run.optimizer)
    assert run.amp.policy == ua.Policy(), "nothing was open"
    x, y = run.amp.to_native(x), run.amp.to_native(y)
    run.amp.backward(lambda: harness.mean_square(run.model(x), y), run.optimizer)
    run.amp.discard_step(run.optimizer)
    assert run.amp.policy.compute_dtype == "bfloat16"


@pytest.mark.needs("policy_schedule")
def test_a_compiled_call_of_two_iterations_keeps_its_policy(harness, form):
    """To its end; the next call has the next one. An eager one changes it in between."""
    low = runs_here(harness, "mixed_bfloat16")
    run, seen = Training(harness, "eager", schedule={0: "float32", 1: low}), []

    def twice(x, y):
        for _ in range(2):
            run.amp.backward(lambda: harness.mean_square(run.model(x), y), run.optimizer)
            seen.append(run.amp.policy.compute_dtype)
            run.amp.step(run.optimizer)

    twice = compiled(run.amp, form, twice)
    ((x, y),) = batches(1)
    for count in (1, 2):
        twice(run.amp.to_native(x), run.amp.to_native(y))
        assert run.amp.applied_steps == 2 * count
    assert run.amp.policy == low
    assert seen[-1] == "bfloat16"
    assert seen[:2] == ["float32", "bfloat16" if form.startswith("eager") else "float32"]
