"""A policy over the course of a run: the oracle is a run that is restarted at the switch under the next policy."""

import itertools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled
from unifiedamp.conformance.emulated import has_dtype
from unifiedamp.conformance.suite.scheduled import (
    AT,
    STEPS,
    Training,
    assert_close,
    assert_same,
    batches,
    differ,
    restarted,
    runs_here,
)  # fmt: skip

OVERRIDDEN = str(ua.Policy.parse("mixed_bfloat16").replace(layer_overrides={"layer0": "float32"}))
PAIRS = [
    ("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32"), ("mixed_bfloat16", "mixed_float16"),
    pytest.param(OVERRIDDEN, "mixed_bfloat16", marks=pytest.mark.needs("layer_overrides"), id="override-none"),
]  # fmt: skip


@pytest.mark.needs("policy_schedule")
def test_a_switch_is_a_restart_under_the_next_policy(harness, form):
    """There and back; and the same again, once the state of the beginning is loaded."""
    low, data = runs_here(harness, "mixed_bfloat16"), batches()
    run = Training(harness, form, schedule={0: "float32", 2: low, "80%": "float32"}, total_steps=STEPS)
    state, weights = run.amp.state_dict(), run.weights()
    assert [each.compute_dtype for each in run.feed(*data)] == ["float32"] * 2 + ["bfloat16"] * 3 + ["float32"]
    once = run.weights()
    same = assert_close if form in harness.forms_that_warm_up else assert_same
    same(once, restarted(harness, form, data, ("float32", 2), (low, 3), ("float32", 1)))
    assert differ(once, restarted(harness, "eager", data, ("float32", STEPS))), "the other policy had no effect"
    run.amp.load_state_dict(state)
    harness.set_parameters(run.model, weights)
    assert run.amp.policy == ua.Policy()
    run.feed(*data)
    same(run.weights(), once)


@pytest.mark.needs("policy_schedule")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_policies_follow_each_other(harness, first, second):
    first, second = runs_here(harness, first), runs_here(harness, second)
    data, options = batches(), {"loss_scale": 8.0}
    run = Training(harness, "eager", schedule={0: first, "50%": second}, total_steps=STEPS, **options)
    run.feed(*data)
    assert_same(run.weights(), restarted(harness, "eager", data, (first, AT), (second, STEPS - AT), **options))
    assert differ(run.weights(), restarted(harness, "eager", data, (first, STEPS), **options))


@pytest.mark.needs("policy_schedule", "float8")
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
@pytest.mark.parametrize("second", ["mixed_bfloat16", "mixed_float8;emulate=true;wgrad=bfloat16"])
def test_float8_is_left_or_changed_by_direction(harness, second, recipe):
    first = ua.Policy.parse("mixed_float8;emulate=true").replace(recipe=recipe)
    data = batches()
    try:
        second = runs_here(harness, second)
        run = Training(harness, "eager", schedule={0: first, AT: second})
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    run.feed(*data)
    assert_same(run.weights(), restarted(harness, "eager", data, (first, AT), (second, STEPS - AT)))


@pytest.mark.needs("policy_schedule", "compile")
def test_a_step_is_traced_once_more_after_a_switch_and_not_again(harness, form):
    run = Training(harness, form, schedule={0: "float32", 8: runs_here(harness, "mixed_bfloat16")})
    if not run.counted:
        pytest.skip("this form runs the step's Python each time")
    (batch,) = batches(1)
    run.feed(*[batch] * 6)
    before = run.runs
    run.feed(*[batch] * 2)
    assert run.runs == before, "nothing is traced before the switch"
    run.feed(*[batch] * 3)
    assert before < run.runs <= before + 3
    traced = run.runs
    run.feed(*[batch] * 4)
    assert run.runs == traced


@pytest.mark.needs("policy_schedule", "loss_scaling")
def test_a_scale_given_to_the_session_goes_on(harness):
    scale = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)
    schedule = {0: "float32", AT: runs_here(harness, "mixed_bfloat16")}
    run, found = Training(harness, "eager", schedule=schedule, loss_scale=scale), []
    for batch in batches():
        found.append(run.amp.loss_scale)
        run.feed(batch)
    assert found == [8.0, 8.0, 16.0, 16.0, 32.0, 32.0]


@pytest.mark.needs("policy_schedule", "ema")
def test_an_average_goes_on_over_a_switch(harness):
    second = runs_here(harness, "mixed_bfloat16")
    run = Training(harness, "eager", schedule={0: "float32", AT: second})
    ema = run.amp.ema(run.model, 0.5)
    expected = {name: value.astype(np.float64) for name, value in run.weights().items()}
    for batch in batches():
        run.feed(batch)
        expected = {name: 0.5 * value + 0.5 * run.weights()[name] for name, value in expected.items()}
    found = sorted(float(np.asarray(value).sum()) for value in ema.weights().values())
    assert found == pytest.approx(sorted(float(value.sum()) for value in expected.values()), rel=1e-5)


@pytest.mark.needs("policy_schedule")
@pytest.mark.parametrize("window", [1, 2])
def test_a_frameworks_own_loop_follows_the_schedule(harness, window):
    """Iterations are windows; one that is dropped when it is half full does not count."""
    second, options = runs_here(harness, "mixed_bfloat16"), {"accumulate_steps": window}
    x, y = (np.concatenate(each) for each in zip(*batches(4), strict=True))

    def fit(run, *parts):
        for part in parts:
            harness.fit(run.model, run.optimizer, x[part], y[part], 8)
        return run.weights()

    halves = slice(0, 16), slice(16, 32)
    scheduled = Training(harness, "eager", schedule={0: "float32", 2 // window: second}, **options)
    if window > 1:
        fit(scheduled, slice(0, 8))
        scheduled.amp.discard_step(scheduled.optimizer)
    at_once = fit(scheduled, slice(0, 32))
    before = fit(Training(harness, "eager", "float32", **options), halves[0])
    expected = fit(Training(harness, "eager", second, before, **options), halves[1])
    assert_same(at_once, expected)
    assert differ(at_once, fit(Training(harness, "eager", "float32", **options), slice(0, 32)))


@pytest.mark.needs("policy_schedule")
def test_a_region_that_was_made_before_the_switch_follows_it(harness):
    run = Training(harness, "eager", schedule={0: "float32", 1: runs_here(harness, "mixed_bfloat16")})
    regions = run.amp.autocast(), run.amp.inference()
    run.feed(*batches(1))
    for region in regions:
        with region:
            assert harness.run_op(harness.low_precision_op) == "bfloat16"


@pytest.mark.needs("policy_schedule")
def test_a_region_in_a_compiled_call_follows_the_schedule(harness, form):
    """In a call that is no step, between steps that are not compiled."""
    run = Training(harness, form, schedule={0: "float32", 1: runs_here(harness, "mixed_bfloat16")})
    amp, pairs = run.amp, batches(2)

    def answer(x):
        with amp.autocast():
            return run.model(x)

    call = compiled(amp, form, answer)
    for x, y in ((amp.to_native(x), amp.to_native(y)) for x, y in pairs):
        found = np.float64(amp.to_numpy(call(x)))
        with amp.inference(run.model), amp.autocast(policy="float32"):
            plain = np.float64(amp.to_numpy(run.model(x)))
        assert (np.abs(found - plain).max() > 1e-3) == (amp.policy.compute_dtype == "bfloat16")
        amp.backward(lambda x=x, y=y: harness.mean_square(run.model(x), y), run.optimizer)
        amp.step(run.optimizer)


@pytest.mark.needs("policy_schedule")
def test_answers_have_the_output_dtype_of_the_policy_in_force(harness):
    second = runs_here(harness, "mixed_bfloat16").replace(output_dtype="bfloat16")
    try:
        run = Training(harness, "eager", schedule={0: "float32", 1: second, 2: "float32"})
    except ua.PolicyError as error:
        pytest.skip(str(error))
    x = run.amp.to_native(batches(1)[0][0])
    for expected, (_, y) in zip(("float32", "bfloat16", "float32"), batches(3), strict=True):
        with run.amp.inference(run.model), run.amp.autocast():
            output = run.model(x)
        assert has_dtype(harness, run.amp, output, expected, second)
        run.step(x, run.amp.to_native(y, harness.dtype_of(output)))


@pytest.mark.needs("policy_schedule")
def test_explain_lists_the_switches(harness):
    second = runs_here(harness, "mixed_bfloat16")
    run = Training(harness, "eager", schedule={0: "float32", "50%": second}, total_steps=STEPS)
    for count, row in itertools.product((0, AT), ("schedule.0", f"schedule.{AT}")):
        if run.amp.applied_steps < count:
            run.feed(*batches(count))
        found = run.amp.explain().row(row)
        assert ("in force" in found.note) == (row == f"schedule.{count}")
    assert run.amp.explain().row(f"schedule.{AT}").native == f"from iteration {AT} of {STEPS} on"
    assert "written '50%'" in run.amp.explain().row(f"schedule.{AT}").note
    assert run.amp.explain().row("policy").value == str(second)
    assert str(run.amp.schedule) in repr(run.amp)


@pytest.mark.needs("policy_schedule", "layer_overrides")
def test_globs_of_later_policies_are_checked_at_prepare(harness):
    second = runs_here(harness, "mixed_bfloat16").replace(layer_overrides={"nowhere": "float32"})
    with pytest.raises(ua.PolicyError, match="nowhere"):
        Training(harness, "eager", schedule={0: "float32", AT: second})


@pytest.mark.needs("policy_schedule")
def test_a_later_policy_that_does_not_run_here_is_refused_at_once(harness):
    policies = harness.capabilities().policies.items()
    lacking = [name for name, support in policies if not support and ua.Policy.parse(name).param_dtype == "float32"]
    if not lacking:
        pytest.skip("every policy runs on this device")
    for name in lacking:
        with pytest.raises(ua.PolicyNotSupportedError, match=name):
            ua.Amp(harness.backend, schedule={0: "float32", AT: name})


def test_a_schedule_is_run_or_refused_by_name(harness):
    schedule = {0: "float32", AT: "float32;keep_norm_float32=false"}
    if harness.capabilities().feature("policy_schedule"):
        amp = ua.Amp(harness.backend, schedule=schedule)
        assert amp.schedule.steps == (0, AT)
        return
    with pytest.raises(ua.UnsupportedError, match="schedule"):
        ua.Amp(harness.backend, schedule=schedule)
