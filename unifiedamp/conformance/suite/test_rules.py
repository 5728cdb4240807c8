"""One meaning of the loss scale: each rule, on every backend, eager and compiled."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

INF = math.inf


def dynamic(**changes):
    return ua.DynamicLossScale(**{"initial_scale": 4.0, "growth_interval": 3, **changes})


def test_a_skipped_step_advances_nothing(harness, form):
    """Weights, the optimizer's own counter and its moments stay; the next step is as if it had never been."""
    good, bad = (1.0, -2.0), (1.0, INF)
    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(), optimizer="adam")
    plain = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(), optimizer="adam")
    run.feed(*good)
    plain.feed(*good)
    before = run.weights()
    steps = harness.optimizer_steps(run.optimizer)
    run.feed(*bad)
    assert run.weights() == before
    assert harness.optimizer_steps(run.optimizer) == steps == 1
    run.feed(*good)
    plain.feed(*good)
    assert run.weights() == pytest.approx(plain.weights(), rel=1e-6)
    assert harness.optimizer_steps(run.optimizer) == 2


def test_a_first_step_that_overflows_is_skipped(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(), optimizer="adam")
    run.feed(INF)
    assert run.weights() == [1.0]
    assert harness.optimizer_steps(run.optimizer) == 0
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (0, 1, 2.0)


def test_the_scale_stops_at_its_floor_and_ceiling(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(growth_interval=1, min_scale=1.0, max_scale=16.0))
    for gradient in (INF, INF, INF, INF, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        run.feed(gradient)
    assert run.scales == [4.0, 2.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0]


def test_a_skip_restarts_the_growth_count(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic())
    for gradient in (1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0):
        run.feed(gradient)
    assert run.scales == [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 4.0]


def test_hysteresis(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(hysteresis=2))
    for gradient in (INF, 1.0, INF, INF, INF, 1.0):
        run.feed(gradient)
    assert [*run.scales, run.amp.loss_scale] == [4.0, 4.0, 4.0, 4.0, 2.0, 1.0, 1.0]


def test_hysteresis_until_the_scale_grows(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(hysteresis=2, hysteresis_reset="growth", growth_interval=2))
    for gradient in (INF, 1.0, INF, 1.0, 1.0, INF, 1.0):
        run.feed(gradient)
    assert [*run.scales, run.amp.loss_scale] == [4.0, 4.0, 4.0, 2.0, 2.0, 4.0, 4.0, 4.0]


def test_finiteness_is_decided_before_clipping(harness, form):
    """Clipping by value turns inf into a number; the step must be skipped all the same."""

    def clip(amp, optimizer):
        amp.clip_grad_value(optimizer, 0.5)

    run = probe_run(harness, form, loss_scale=dynamic(), clip=clip)
    run.feed(INF)
    assert run.weights() == [1.0]
    assert run.amp.skipped_steps == 1
    run.feed(3.0)
    assert run.weights() == pytest.approx([0.95])


def test_clip_grad_norm_sees_true_gradients(harness, form):
    def clip(amp, optimizer):
        amp.unscale(optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.unscale(optimizer)

    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=dynamic(initial_scale=1024.0), clip=clip)
    run.feed(3.0, 4.0)
    assert run.weights() == pytest.approx([1 - 0.1 * 0.6, 1 - 0.1 * 0.8], abs=1e-5)
    run.feed(0.3, 0.4)
    assert run.weights() == pytest.approx([0.94 - 0.03, 0.92 - 0.04], abs=1e-5)


@pytest.mark.needs("accumulation")
def test_a_bad_micro_batch_discards_its_window(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(growth_interval=2), accumulate_steps=2)
    for gradient in (1.0, 3.0, INF, 1.0, 1.0, INF, 1.0, 1.0, 2.0, 2.0):
        run.feed(gradient)
    assert run.scales == [4.0, 4.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert run.weights() == pytest.approx([1.0 - 0.2 - 0.1 - 0.2], abs=1e-6)
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (3, 2)
    assert run.amp.loss_scale == 2.0


@pytest.mark.needs("accumulation")
def test_clipping_inside_a_window_waits_for_its_end(harness, form):
    def clip(amp, optimizer):
        amp.clip_grad_norm(optimizer, 1.0)

    run = probe_run(harness, form, loss_scale=dynamic(), accumulate_steps=2, clip=clip)
    run.feed(6.0)
    run.feed(0.0)
    assert run.weights() == pytest.approx([0.9], abs=1e-5)


def test_no_scaler_leaves_everything_to_the_framework(harness, form):
    run = probe_run(harness, form)
    run.feed(2.0)
    assert run.weights() == pytest.approx([0.8])
    assert (run.amp.loss_scale, run.amp.applied_steps, run.amp.skipped_steps) == (1.0, 1, 0)


def test_static_scale_skips_and_never_changes(harness, form):
    run = probe_run(harness, form, loss_scale=128.0)
    for gradient in (1.0, INF, 1.0):
        run.feed(gradient)
    assert run.scales == [128.0] * 3
    assert run.weights() == pytest.approx([0.8], abs=1e-6)
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (2, 1)


def test_exhaustion_names_tensors_and_the_loss(harness, form):
    """Also where the optimizer's kernel skips by itself, as some do once they have momentum."""
    scale = dynamic(max_consecutive_skips=5)
    run = probe_run(
        harness, form, values=(1.0, 1.0), make=lambda model: harness.sgd([model], 0.1, 0.5), loss_scale=scale
    )
    run.feed(0.0, 0.0)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            run.feed(1.0, INF)
    error = caught.value
    names = list(harness.parameters(run.model))
    assert error.tensors == (names[1],)
    assert error.loss_was_finite is False
    assert 5 <= error.skips <= 55
    assert names[1] in str(error)
    assert run.weights() == [1.0, 1.0]


def test_a_bad_gradient_under_a_finite_loss(harness):
    """Finiteness is read off the gradients, wherever they come from, and the report says that the loss was fine."""
    amp = session(harness, loss_scale=dynamic(max_consecutive_skips=2))
    model = harness.probe([1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    names = list(harness.parameters(model))
    x = amp.to_native(np.ones(2, np.float32))
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            amp.backward(lambda: model(x), optimizer)
            harness.set_gradients(amp, optimizer, {names[1]: np.array([INF], np.float32)})
            amp.step(optimizer)
    assert caught.value.tensors == (names[1],)
    assert caught.value.loss_was_finite is True
    assert [float(value[0]) for value in harness.parameters(model).values()] == [1.0, 1.0]


def test_a_finite_step_ends_a_run_of_skips(harness, form):
    run = probe_run(harness, form, loss_scale=dynamic(max_consecutive_skips=3))
    for _ in range(30):
        run.feed(INF)
        run.feed(INF)
        run.feed(1.0)
    assert run.amp.applied_steps == 30


@pytest.mark.needs("context_form")
def test_the_loss_is_scaled_in_float32(harness):
    """2**16 times 3 does not fit float16."""
    amp = session(harness, policy="float32", loss_scale=ua.DynamicLossScale(initial_scale=2.0**20))
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    with amp.autocast():
        loss = model(amp.to_native(np.array([3.0], np.float32)))
    with amp.scale_loss(loss, optimizer) as scaled:
        assert harness.dtype_of(scaled.value) == "float32"
        assert float(np.ravel(amp.to_numpy(scaled.value))[0]) == 3.0 * 2.0**20
        scaled.backward()
    assert amp.step(optimizer).applied


def test_step_result_tells_what_happened_also_later(harness):
    amp = session(harness, loss_scale=dynamic(growth_interval=2))
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    results = []
    for gradient in (1.0, 1.0, INF):
        x = amp.to_native(np.array([gradient], np.float32))
        amp.backward(lambda x=x: model(x), optimizer)
        results.append(amp.step(optimizer))
    assert [tuple(result.values) for result in results] == [
        (True, False, "applied", 4.0, 4.0),
        (True, False, "applied", 4.0, 8.0),
        (False, True, "non_finite", 8.0, 4.0),
    ]


def test_two_losses_of_one_optimizer_add_up(harness, form):
    amp = session(harness, form, loss_scale=dynamic())
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))

    def step(x, y):
        amp.backward(lambda: model(x), optimizer)
        amp.backward(lambda: model(y), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for _ in range(2):
        step(amp.to_native(np.array([1.0], np.float32)), amp.to_native(np.array([2.0], np.float32)))
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.4], abs=1e-6)


def test_discard_step_drops_the_window(harness):
    amp = session(harness, loss_scale=dynamic())
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x = amp.to_native(np.array([INF], np.float32))
    amp.backward(lambda: model(x), optimizer)
    amp.unscale(optimizer)
    result = amp.discard_step(optimizer)
    assert (result.applied, result.reason, result.next_scale) == (False, "discarded", 4.0)
    x = amp.to_native(np.array([1.0], np.float32))
    amp.backward(lambda: model(x), optimizer)
    assert amp.step(optimizer).applied
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.9])
    assert amp.loss_scale == 4.0


def test_a_scheduler_moves_only_with_applied_steps(harness):
    class Scheduler:
        moves = 0

        def step(self):
            self.moves += 1

    amp = session(harness, loss_scale=dynamic())
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    scheduler = Scheduler()
    for gradient in (INF, 1.0, INF, 1.0, 1.0):
        x = amp.to_native(np.array([gradient], np.float32))
        amp.backward(lambda x=x: model(x), optimizer)
        amp.step(optimizer, scheduler)
    assert scheduler.moves == 3


def test_gradients_can_be_read_between_unscale_and_step(harness):
    amp = session(harness, loss_scale=dynamic())
    model = harness.probe([1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x = amp.to_native(np.array([2.0, 3.0], np.float32))
    amp.backward(lambda: model(x), optimizer)
    scaled = {name: float(amp.to_numpy(value)[0]) for name, value in amp.gradients(optimizer).items()}
    amp.unscale(optimizer)
    true = {name: float(amp.to_numpy(value)[0]) for name, value in amp.gradients(optimizer).items()}
    names = list(harness.parameters(model))
    assert scaled == {names[0]: 8.0, names[1]: 12.0}
    assert true == {names[0]: 2.0, names[1]: 3.0}
    amp.step(optimizer)
    assert amp.gradients(optimizer) == {}


def test_observers_hear_of_skips_and_scales(harness, form):
    heard = []

    class Observer:
        def on_step_skipped(self, state):
            heard.append(("skipped", state.skipped_steps))

        def on_scale_changed(self, before, after):
            heard.append(("scale", before, after))

    run = probe_run(harness, form, loss_scale=dynamic(growth_interval=2))
    run.amp.observe(Observer())
    for gradient in (1.0, INF, 1.0, 1.0):
        run.feed(gradient)
    assert heard == [("skipped", 1), ("scale", 4.0, 2.0), ("scale", 2.0, 4.0)]


def test_a_loss_of_one_number_in_another_shape(harness, form):
    """It is refused, or is as good as the number, also beside scalars."""
    amp = session(harness, form, loss_scale=dynamic())
    model = harness.mlp([(np.float32([[2.0]]), np.float32([0.0]))])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.125))
    x, zero, expected = amp.to_native(np.float32([[1.0]])), amp.to_native(np.float32([[0.0]])), [2.0, 0.0]

    def step(scalar):
        amp.backward(lambda: harness.mean_square(model(x), zero) if scalar else model(x), optimizer)
        amp.step(optimizer)

    for scalar in (True, False, True):
        slope = 2.0 * sum(expected) if scalar else 1.0
        try:
            step(scalar)
            expected = [value - 0.125 * slope for value in expected]
        except ua.LossError:
            assert not scalar
        found = [float(np.ravel(value)[0]) for value in harness.parameters(model).values()]
        assert sorted(found) == pytest.approx(sorted(expected), abs=1e-6)
