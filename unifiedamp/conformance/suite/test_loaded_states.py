"""A loaded state is the whole truth: what was pending is dropped; what cannot be a state changes nothing."""

import contextlib
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.conformance.recorded import Kept

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3, max_scale=64.0)
NUMBERS = {"scale": 16.0, "good_steps": 1, "bad_steps": 0, "applied_steps": 7, "skipped_steps": 2}


def saved(run, **changes):
    return {**run.amp.state_dict(), "state": {**NUMBERS, **changes}}


def numbers(run):
    return run.amp.state_dict()["state"]


def mangled(raw):
    """Yield states that are none, each wrong in one place."""
    for name, values in {
        "scale": (math.nan, INF, -8.0, 0, 1e39, 1e-46, True, "8", None, [8.0], {}, 10**400),
        "good_steps": (-1, 0.5, math.nan, True, "1", None, 2**63),
        "bad_steps": (-1, 1, INF),
        "applied_steps": (-1, 2**63, 1e300, [7]),
        "skipped_steps": (-1, False, {"x": 1}),
    }.items():
        yield from ({**raw, "state": {**raw["state"], name: value}} for value in values)
        yield {**raw, "state": {key: value for key, value in raw["state"].items() if key != name}}
    for key, values in {
        "schema": ("other", 1, None, ["unifiedamp"]),
        "version": (0, 99, True, "1", None),
        "policy": (None, 4, "no such policy"),
        "loss_scale": (None, math.nan, -1, "dynamc", {"kind": ["x"]}, {"kind": "dynamic", "growth_factor": "2"}, [1]),
        "state": (None, [], "x", 3),
    }.items():
        yield from ({**raw, key: value} for value in values)
    yield {"scale": 8.0, "_growth_tracker": -1}
    yield {"scale": "8", "_growth_tracker": 1}
    yield {"loss_scaler0": {"loss_scale": "dynamic", "unskipped": 1}}
    yield {"dynamic_scale": math.nan, "step_counter": 1}
    yield {"current_loss_scale": True, "good_steps": 1}
    yield {"_next_loss_scale": 2.0, "_unskipped": 1.5}
    yield from ([], None, "state", 3)


def test_what_is_no_state_is_refused_and_nothing_changes(harness):
    run = probe_run(harness, loss_scale=SCALE)
    for gradient in (1.0, INF, 1.0):
        run.feed(gradient)
    before, weights = numbers(run), run.weights()
    for wrong in mangled(saved(run)):
        with pytest.raises(ua.CheckpointError):
            run.amp.load_state_dict(wrong)
        assert numbers(run) == before, wrong
    assert run.weights() == weights
    run.feed(1.0)
    assert run.weights() == pytest.approx([0.7], abs=1e-6)


def test_a_refused_state_leaves_the_open_window_alone(harness):
    run = probe_run(harness, loss_scale=SCALE)
    x = run.amp.to_native(np.float32([1.0]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    with pytest.raises(ua.CheckpointError):
        run.amp.load_state_dict({})
    run.amp.step(run.optimizer)
    assert run.weights() == pytest.approx([0.9], abs=1e-6)


@pytest.mark.parametrize("restart_scale", [False, True])
def test_every_number_is_taken_over(harness, form, restart_scale):
    run = probe_run(harness, form, loss_scale=SCALE)
    run.feed(1.0)
    for state in (NUMBERS, {**NUMBERS, "good_steps": 0, "bad_steps": 3}, {**NUMBERS, "applied_steps": 2**52}):
        run.amp.load_state_dict(saved(run, **state), restart_scale=restart_scale)
        assert numbers(run) == state
    run.amp.load_state_dict(saved(run))
    for _ in range(2):
        run.feed(1.0)
    assert numbers(run) == {**NUMBERS, "scale": 32.0, "good_steps": 0, "applied_steps": 9}
    assert run.weights() == pytest.approx([0.7], abs=1e-6)


@pytest.mark.parametrize(("left", "seen"), [(3, [16.0, 16.0, 8.0]), (2, [16.0, 8.0, 4.0]), (-1, [8.0, 4.0, 2.0])])
def test_hysteresis_goes_on_from_where_megatron_was(harness, form, left, seen):
    """Each overflow comes after a finite step, which starts no count again."""
    setting = ua.DynamicLossScale(initial_scale=4.0, growth_interval=9, hysteresis=3, hysteresis_reset="growth")
    run = probe_run(harness, form, loss_scale=setting)
    run.amp.load_state_dict({"scale": 16.0, "growth_tracker": 2, "hysteresis_tracker": left})
    for scale in seen:
        run.feed(1.0)
        run.feed(INF)
        assert run.amp.loss_scale == scale
    kept = run.amp.state_dict()
    run.amp.load_state_dict(kept)
    assert run.amp.state_dict() == kept


@pytest.mark.parametrize(("given", "taken"), [(2.0**20, 64.0), (2.0**-20, 2.0**-14)])
def test_a_scale_out_of_bounds_is_clamped_and_told(harness, form, given, taken):
    run = probe_run(harness, form, loss_scale=SCALE)
    with pytest.warns(ua.StateWarning, match="lies outside"):
        run.amp.load_state_dict(saved(run, scale=given))
    assert run.amp.loss_scale == taken
    run.feed(1.0)
    assert run.weights() == pytest.approx([0.9], abs=1e-6)


def test_a_scale_that_is_no_float32_is_rounded(harness, form):
    run = probe_run(harness, form, loss_scale=SCALE)
    run.amp.load_state_dict(saved(run, scale=3.3))
    assert run.amp.loss_scale == float(np.float32(3.3))
    run.feed(INF)
    assert run.amp.loss_scale == float(np.float32(3.3) / np.float32(2))


def test_under_strict_a_scale_out_of_bounds_is_refused(harness):
    run = probe_run(harness, loss_scale=SCALE, strict=True)
    before = numbers(run)
    with pytest.raises(ua.CheckpointError, match="lies outside"):
        run.amp.load_state_dict(saved(run, scale=2.0**20))
    assert numbers(run) == before


def test_a_session_without_a_scaler_takes_the_counts(harness, form):
    """A step that the session dropped before does not count after that."""
    scaled, run = probe_run(harness, loss_scale=SCALE), probe_run(harness, form, loss_scale="none")
    run.feed(1.0)
    x = run.amp.to_native(np.float32([1.0]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    run.amp.skip_if(True)
    run.amp.step(run.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StateWarning)
        run.amp.load_state_dict(saved(scaled))
    run.feed(1.0)
    assert (run.amp.loss_scale, run.amp.applied_steps, run.amp.skipped_steps) == (1.0, 8, 2)
    assert run.weights() == pytest.approx([0.8], abs=1e-6)


@pytest.mark.parametrize("loss_scale", ["none", 4.0])
def test_a_second_state_replaces_the_first(harness, loss_scale):
    """Counts of states are not added up, with steps before, between and after them."""
    run, states = probe_run(harness, loss_scale=loss_scale), []
    for _ in range(3):
        run.feed(1.0)
        states.append(run.amp.state_dict())
    for state, count in ((states[2], 3), (states[0], 1), (states[1], 2)):
        run.amp.load_state_dict(state)
        assert run.amp.applied_steps == count
        run.feed(1.0)
        assert run.amp.applied_steps == count + 1


# -- what is pending ---------------------------------------------------------------------------------------------------


@pytest.mark.needs("accumulation")
def test_micro_batches_before_a_loaded_state_are_dropped(harness, form):
    run = probe_run(harness, form, loss_scale=SCALE, accumulate_steps=2)
    run.feed(100.0)
    run.amp.load_state_dict(saved(run))
    for gradient in (1.0, 3.0):
        run.feed(gradient)
    assert run.weights() == pytest.approx([0.8], abs=1e-6)
    assert numbers(run) == {**NUMBERS, "good_steps": 2, "applied_steps": 8}


@pytest.mark.parametrize("gradient", [100.0, INF])
@pytest.mark.parametrize("unscaled", [False, True])
def test_gradients_before_a_loaded_state_are_dropped(harness, gradient, unscaled):
    run = probe_run(harness, loss_scale=SCALE)
    x = run.amp.to_native(np.float32([gradient]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    if unscaled:
        run.amp.unscale(run.optimizer)
    run.amp.load_state_dict(saved(run))
    with pytest.raises(ua.StepOrderError):
        run.amp.step(run.optimizer)
    run.feed(1.0)
    assert run.weights() == pytest.approx([0.9], abs=1e-6)
    assert numbers(run) == {**NUMBERS, "good_steps": 2, "applied_steps": 8}


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("gradient", [1.0, INF])
def test_findings_before_a_loaded_state_are_dropped(harness, form, gradient):
    """The first optimizer had its step and the second not yet; the scale has still to be updated by what it found."""
    amp = session(harness, form, loss_scale=SCALE)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    prepared = amp.prepare(*models, *(harness.sgd([model], 0.1) for model in models))

    def step_of(index):
        model, optimizer = prepared[index], prepared[index + 2]

        def step(x):
            loss = amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)
            return loss

        return compiled(amp, form, step)

    first, second = step_of(0), step_of(1)
    x, one = (amp.to_native(np.float32([value])) for value in (gradient, 1.0))
    first(x)
    state = {**amp.state_dict(), "state": NUMBERS}
    amp.load_state_dict(state)
    first(one)
    second(one)
    assert amp.state_dict()["state"] == {**NUMBERS, "good_steps": 2, "applied_steps": 9}


@pytest.mark.parametrize("end", ["discarded", "interrupted"])
def test_a_window_dropped_after_a_loaded_state_changes_nothing(harness, form, end):
    run = probe_run(harness, form, loss_scale=SCALE)
    run.feed(1.0)
    run.amp.load_state_dict(saved(run))
    x = run.amp.to_native(np.float32([INF]))

    def loss():
        answer = run.model(x)
        if end == "interrupted":
            raise KeyError
        return answer

    with pytest.raises(KeyError) if end == "interrupted" else contextlib.nullcontext():
        run.amp.backward(loss, run.optimizer)
    if end == "discarded":
        run.amp.discard_step(run.optimizer)
    assert numbers(run) == NUMBERS
    run.feed(1.0)
    assert numbers(run) == {**NUMBERS, "good_steps": 2, "applied_steps": 8}


@pytest.mark.needs("several_optimizers")
def test_an_open_iteration_after_a_loaded_state(harness):
    """Ended by the next loss of an optimizer that had its step: the scale goes on from the state that was loaded."""
    amp = session(harness, loss_scale=SCALE)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    prepared = amp.prepare(*models, *(harness.sgd([model], 0.1) for model in models))
    x = amp.to_native(np.float32([1.0]))
    amp.load_state_dict({**amp.state_dict(), "state": NUMBERS})
    for _ in range(3):
        amp.backward(lambda: prepared[0](x), prepared[2])
        amp.step(prepared[2])
    assert amp.state_dict()["state"] == {**NUMBERS, "good_steps": 0, "scale": 32.0, "applied_steps": 10}


@pytest.mark.needs("several_optimizers")
def test_what_one_optimizer_found_before_a_loaded_state_is_forgotten(harness):
    """Its step overflowed and the other's was to come; the other trains on alone, each loss a new iteration."""
    amp = session(harness, loss_scale=SCALE)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    *models, one, two = amp.prepare(*models, *(harness.sgd([model], 0.1) for model in models))
    for gradient, model, optimizer in ((INF, models[0], one), *[(1.0, models[1], two)] * 3):
        x = amp.to_native(np.float32([gradient]))
        amp.backward(lambda model=model, x=x: model(x), optimizer)
        assert amp.step(optimizer).applied == math.isfinite(gradient)
        if gradient == INF:
            amp.load_state_dict({**amp.state_dict(), "state": NUMBERS})
    assert amp.state_dict()["state"] == {**NUMBERS, "good_steps": 0, "scale": 32.0, "applied_steps": 10}


@pytest.mark.needs("recording")
def test_a_recorder_takes_no_loaded_skip_for_one_that_it_missed(harness, form):
    run = probe_run(harness, form, loss_scale=SCALE)
    kept = Kept()
    with run.amp.record(kept, every=3):
        run.feed(1.0)
        run.amp.load_state_dict(saved(run, applied_steps=10, skipped_steps=30))
        for _ in range(3):
            run.feed(1.0)
    assert kept.of("skip") == []
    assert [(step["step"], step["skipped_steps"]) for step in kept.of("step")] == [(1, 0), (41, 30), (42, 30)]


@pytest.mark.parametrize("reset", ["good_step", "growth"])
@pytest.mark.parametrize(("bad", "seen"), [(0, [16.0, 16.0, 8.0]), (1, [16.0, 8.0]), (2, [8.0]), (5, [8.0])])
def test_overflows_that_a_run_without_hysteresis_had_count(harness, bad, seen, reset):
    """Its consecutive ones, towards the backoff of a session that has it."""
    source = probe_run(harness, loss_scale=replace(SCALE, hysteresis_reset=reset))
    state = saved(source, good_steps=0, bad_steps=bad)
    setting = ua.DynamicLossScale(4.0, growth_interval=3, max_scale=64.0, hysteresis=3, hysteresis_reset=reset)
    run = probe_run(harness, loss_scale=setting)
    with pytest.warns(ua.StateWarning, match="hysteresis was 1 when saved"):
        run.amp.load_state_dict(state)
    for scale in seen:
        run.feed(INF)
        assert run.amp.loss_scale == scale
