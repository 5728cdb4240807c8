"""A run under a schedule goes on from a saved state at its place, or says where it goes on."""

import pytest

import unifiedamp as ua
from unifiedamp.conformance.suite.scheduled import AT, Training, assert_same, batches, runs_here, two_of


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
    beginning, switched = (
        {**state, "schedule": {**state["schedule"], "step": step}, "policy": str(policy.replace(loss_scale=None))}
        for step, policy in ((0, ua.Policy()), (AT, second))
    )
    for place, policy in ((beginning, ua.Policy()), (switched, second)):
        run.amp.load_state_dict(place)
        for broken in (beginning, switched):
            with pytest.raises(ua.CheckpointError):
                run.amp.load_state_dict({**broken, "ema": "no list"})
            assert run.amp.policy.compute_dtype == policy.compute_dtype, "a refused state changes nothing"
    for wrong in ({"step": 1}, [], {"policies": "0: float32", "step": -1}, {"policies": "5: float32", "step": 1}):
        with pytest.raises(ua.CheckpointError, match="schedule"):
            fresh.amp.load_state_dict({**state, "schedule": wrong})


@pytest.mark.needs("policy_schedule")
@pytest.mark.parametrize("first", ["float32", "mixed_bfloat16", "mixed_float8;emulate=true;recipe=delayed"])
@pytest.mark.parametrize("wrong", [{"ema": [1]}, {"amax_history": [1]}, {"state": {"scale": -1.0}}])
def test_a_refused_state_of_another_place_changes_nothing(harness, first, wrong):
    """Neither the policy nor what it keeps beside the weights: training goes on as if nothing had been loaded."""
    schedule = {0: runs_here(harness, first), AT: runs_here(harness, "mixed_bfloat16;keep_norm_float32=false")}
    data, runs = batches(), [Training(harness, "eager", schedule=schedule) for _ in range(2)]
    for run in runs:
        run.feed(*data[:2])
    before = runs[0].amp.state_dict()
    place = {"policy": str(schedule[AT].replace(loss_scale=None)), "schedule": {**before["schedule"], "step": AT + 1}}
    with pytest.raises(ua.CheckpointError):
        runs[0].amp.load_state_dict({**before, **place, **wrong})
    assert runs[0].amp.state_dict() == before
    for run in runs:
        run.feed(*data[2:])
    assert_same(runs[0].weights(), runs[1].weights())
