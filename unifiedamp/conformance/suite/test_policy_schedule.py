"""A policy over the course of a run: the oracle is a run that is restarted at the switch under the next policy."""

import itertools
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.emulated import emulation_of

AT = 3
"""The iteration of the switch."""
STEPS = 6
RATE = 0.25
PAIRS = [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32"), ("mixed_bfloat16", "mixed_float16")]


def runs_here(harness, policy):
    """Return a policy as it runs on this machine: itself, or its emulation."""
    try:
        session(harness, policy=policy).close()
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    try:
        ua.Amp(harness.backend, policy).close()
    except ua.PolicyNotSupportedError:
        return emulation_of(harness, policy)
    return ua.Policy.parse(policy)


def batches(count=STEPS):
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, 8, 16)).astype(np.float32)) for _ in range(count)]


class Training:
    """A model under a session: under a schedule, or under one policy from given weights."""

    def __init__(self, harness, form, policy=None, weights=None, **options):
        backend_options = {harness.backend: dict(harness.forms[form])} if harness.forms[form] else None
        self.harness, self.runs = harness, 0
        self.amp = amp = ua.Amp(harness.backend, policy, backend_options=backend_options, **options)
        rng = np.random.default_rng(0)
        layers = [(rng.normal(size=(a, b)).astype(np.float32), np.zeros(b, np.float32)) for a, b in [(16, 16)] * 2]
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], RATE)
        # Where dynamo traces the step itself, it would trace it anew at each change of the count.
        self.counted = counted = form not in ("eager", "max") and bool(
            amp.capabilities.feature("compile") and amp.backend.compiler.replays_traces
        )
        self.model, self.optimizer = amp.prepare(model, optimizer)
        if weights is not None:
            harness.set_parameters(self.model, weights)

        def step(x, y):
            if counted:
                self.runs += 1
            amp.backward(lambda: harness.mean_square(self.model(x), y), self.optimizer)
            amp.step(self.optimizer)

        self.step = compiled(amp, form, step)

    def feed(self, *pairs):
        """Run a step on each batch; return the policies in force before each."""
        found = []
        for x, y in pairs:
            found.append(self.amp.policy)
            self.step(self.amp.to_native(x), self.amp.to_native(y))
        return found

    def weights(self):
        return {name: value.astype(np.float32) for name, value in self.harness.parameters(self.model).items()}


def assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_close(found, expected):
    """Equal up to the rounding of a few float32 steps."""
    assert list(found) == list(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def differ(one, other):
    return any((one[name] != other[name]).any() for name in one)


def restarted(harness, form, data, *parts, **options):
    """Return the weights after runs under one policy each: (policy, its iterations), each from the weights before."""
    weights, rest = None, list(data)
    for policy, count in parts:
        run = Training(harness, form, policy, weights, **options)
        run.feed(*rest[:count])
        weights, rest = run.weights(), rest[count:]
    assert not rest
    return weights


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
@pytest.mark.parametrize("second", ["mixed_bfloat16", "mixed_float8;emulate=true;wgrad=bfloat16"])
def test_float8_is_left_or_changed_by_direction(harness, second):
    first = ua.Policy.parse("mixed_float8;emulate=true")
    data = batches()
    try:
        second = runs_here(harness, second)
        run = Training(harness, "eager", schedule={0: first, AT: second})
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    run.feed(*data)
    assert_same(run.weights(), restarted(harness, "eager", data, (first, AT), (second, STEPS - AT)))


@pytest.mark.needs("policy_schedule")
@pytest.mark.parametrize("saved", [AT - 1, AT, AT + 1])
def test_a_run_is_resumed_at_its_place(harness, saved):
    schedule = {0: "float32", AT: runs_here(harness, "mixed_bfloat16")}
    data = batches()
    straight = Training(harness, "eager", schedule=schedule)
    straight.feed(*data[:saved])
    state, weights = straight.amp.state_dict(), straight.weights()
    straight.feed(*data[saved:])
    resumed = Training(harness, "eager", schedule=schedule, weights=weights)
    resumed.feed(*data[:1])  # a session that is at another place
    harness.set_parameters(resumed.model, weights)
    resumed.amp.load_state_dict(state)
    assert str(resumed.amp.policy.replace(loss_scale=None)) == state["policy"]
    resumed.feed(*data[saved:])
    assert_same(resumed.weights(), straight.weights())
    assert state["schedule"] == {"policies": str(straight.amp.schedule), "step": saved}


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
    assert_same(run.weights(), restarted(harness, form, good, *parts, loss_scale=scale))


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


@pytest.mark.needs("policy_schedule", "loss_scaling")
def test_a_scale_given_to_the_session_goes_on(harness):
    scale = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)
    schedule = {0: "float32", AT: runs_here(harness, "mixed_bfloat16")}
    run, found = Training(harness, "eager", schedule=schedule, loss_scale=scale), []
    for batch in batches():
        found.append(run.amp.loss_scale)
        run.feed(batch)
    assert found == [8.0, 8.0, 16.0, 16.0, 32.0, 32.0]


def two_of(harness, amp):
    """Return two prepared models, and the optimizer of each."""
    weight = [(np.eye(16, dtype=np.float32), np.zeros(16, np.float32))]
    with amp.scope():
        models = [harness.mlp(weight) for _ in range(2)]
        optimizers = [harness.sgd([model], RATE) for model in models]
    prepared = amp.prepare(*models, *optimizers)
    return prepared[:2], prepared[2:]


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


@pytest.mark.needs("policy_schedule", "several_optimizers")
@pytest.mark.parametrize(("applied", "iteration"), [(3, 2), (5, 3)])
def test_a_state_without_a_schedule_is_placed_by_its_iterations(harness, applied, iteration):
    low = runs_here(harness, "mixed_bfloat16")
    amp = ua.Amp(harness.backend, schedule={0: "float32", 3: low})
    two_of(harness, amp)
    expected = ua.Policy() if iteration < 3 else low
    state = {key: value for key, value in amp.state_dict().items() if key != "schedule"}
    state["state"] = {**state["state"], "applied_steps": applied, "skipped_steps": 1}
    state["policy"] = str(expected)
    with pytest.warns(ua.StateWarning, match=f"without a schedule; this session goes on at iteration {iteration},"):
        amp.load_state_dict(state)
    assert amp.policy == expected


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
def test_a_frameworks_own_loop_follows_the_schedule(harness):
    second = runs_here(harness, "mixed_bfloat16")
    x, y = (np.concatenate(each) for each in zip(*batches(4), strict=True))

    def fit(run, *parts):
        for part in parts:
            harness.fit(run.model, run.optimizer, x[part], y[part], 8)
        return run.weights()

    halves = slice(0, 16), slice(16, 32)
    at_once = fit(Training(harness, "eager", schedule={0: "float32", 2: second}), slice(0, 32))
    before = fit(Training(harness, "eager", "float32"), halves[0])
    expected = fit(Training(harness, "eager", second, before), halves[1])
    assert_same(at_once, expected)
    assert differ(at_once, fit(Training(harness, "eager", "float32"), slice(0, 32)))


@pytest.mark.needs("policy_schedule")
def test_states_of_other_schedules_are_named(harness):
    second = runs_here(harness, "mixed_bfloat16")
    run = Training(harness, "eager", schedule={0: "float32", AT: second})
    run.feed(*batches(4))
    state = run.amp.state_dict()
    other = Training(harness, "eager", schedule={0: "float32", 5: second})
    with pytest.warns(ua.StateWarning, match="saved under schedule '0: float32 . 3: .* goes on by '0: float32 . 5:"):
        other.amp.load_state_dict(state)
    assert other.amp.policy == ua.Policy()
    plain = Training(harness, "eager", second)
    with pytest.warns(ua.StateWarning, match="saved under schedule .* at iteration 4; this session has one policy"):
        plain.amp.load_state_dict(state)
    fresh = Training(harness, "eager", schedule={0: "float32", AT: second})
    with pytest.warns(ua.StateWarning, match="without a schedule; this session goes on at iteration 4"):
        fresh.amp.load_state_dict({key: value for key, value in state.items() if key != "schedule"})
    assert fresh.amp.policy.compute_dtype == second.compute_dtype
    for wrong in ({"step": 1}, [], {"policies": "0: float32", "step": -1}, {"policies": "5: float32", "step": 1}):
        with pytest.raises(ua.CheckpointError, match="schedule"):
            fresh.amp.load_state_dict({**state, "schedule": wrong})


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


def test_a_schedule_is_run_or_refused_by_name(harness):
    schedule = {0: "float32", AT: "float32;keep_norm_float32=false"}
    if harness.capabilities().feature("policy_schedule"):
        amp = ua.Amp(harness.backend, schedule=schedule)
        assert amp.schedule.steps == (0, AT)
        return
    with pytest.raises(ua.UnsupportedError, match="schedule"):
        ua.Amp(harness.backend, schedule=schedule)
