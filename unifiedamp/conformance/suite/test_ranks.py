"""Ranks that train together: one scale, one decision and the same weights on each, and those of the oracle.

Every case runs under the watchdog of ``RankProcesses``: one that hangs fails with the stacks of all processes.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest

from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.ranks import RankFailure
from unifiedamp.conformance.ranks.cases import cases_of, loading, resumed
from unifiedamp.conformance.ranks.oracle import RankOracle

pytestmark = pytest.mark.needs("several_devices")


@functools.cache
def answers(backend, form, kind, count, steps):
    """Train the cases of all topics at once: starting processes is what costs."""
    harness = load_harness(backend)
    cases = [case for topic in cases_of(harness.rank_kinds[kind], count, steps).values() for case in topic]
    return harness.run_ranks(kind, count, form, cases)


@pytest.fixture
def check(harness, form, ranks, request):
    """Compare the cases of a topic with the oracle."""
    trajectories, (kind, count) = request.config.getoption("--amp-trajectories"), ranks
    rules = harness.rank_kinds[kind]
    whole = trajectories >= 10_000 and rules.quick and form == "eager" and count == rules.counts[0]
    steps = trajectories if whole else max(12, trajectories // 32)

    def check(topic):
        cases = cases_of(rules, count, steps)[topic]
        if not cases:
            pytest.skip(f"no rank of {kind!r} may leave out gradients")
        found = answers(harness.backend, form, kind, count, steps)
        for case in cases:
            follows_the_oracle(found[case.name], case, rules, count, case.scale.initial_scale)

    return check


def follows_the_oracle(traces, case, kind, count, scale, good=0):
    """Compare every step of every rank; return the state that the ranks ended in."""
    if isinstance(traces, RankFailure):
        pytest.fail(f"{case.name}: {traces.why}")
    assert len(traces) == count
    oracle = RankOracle(case, kind, count, scale, good)
    for index, wanted in enumerate(oracle.run()):
        found = [trace.steps[index] for trace in traces]
        where = f"{case.name}, step {index}"
        for name in ("applied", "skipped", "scale"):
            assert [getattr(one, name) for one in found] == [getattr(one, name) for one in wanted], f"{where}: {name}"
        for one, right in zip(found, wanted, strict=True):
            finite = np.where(np.isfinite(one.norms), one.norms, np.inf)  # nan or inf is the framework's choice
            np.testing.assert_allclose(finite, right.norms, rtol=1e-5, err_msg=f"{where}: norms")
        if case.reads_after(index):
            same_weights(found, wanted, kind, where)
    state = traces[0].state
    assert all(trace.state == state for trace in traces)
    assert (state["state"]["good_steps"], state["state"]["bad_steps"]) == (oracle.good, oracle.bad)
    return state


def same_weights(found, wanted, kind, where):
    """Those of the oracle; bit for bit the same on all ranks where gradients are reduced."""
    for param, first in enumerate(found[0].weights):
        for one, right in zip(found, wanted, strict=True):
            mine = one.weights[param]
            np.testing.assert_allclose(mine, right.weights[param], rtol=1e-5, atol=1e-6, err_msg=f"{where}: w{param}")
            assert param in kind.own or np.array_equal(mine, first), f"{where}: w{param} differs between ranks"


def test_an_overflow_on_any_rank_skips_on_all(check):
    check("overflow")


def test_a_nan_on_any_rank_skips_on_all(check):
    check("nan")


def test_a_rank_without_gradients_decides_with_the_others(check):
    check("absent")


def test_windows_of_all_ranks_are_one(check):
    check("accumulation")


def test_gradients_are_clipped_by_the_norm_over_all_ranks(check):
    check("clipping")


def test_optimizers_skip_one_by_one_on_all_ranks(check):
    check("two optimizers")


def test_random_steps_of_all_ranks_follow_the_oracle(check):
    check("random")


def test_a_state_that_one_rank_loads_is_refused_on_all(harness, form, ranks):
    """Before a step is applied: its gradients would be those of two scales, and later steps differ for good."""
    kind, count = ranks
    rules = harness.rank_kinds[kind]
    if form != "eager" or not rules.loads_alone or count != rules.counts[0]:
        pytest.skip("eager steps of the fewest ranks, each with a session")
    cases = loading(rules, count)
    found = harness.run_ranks(kind, count, form, cases)
    for case in cases:
        assert not isinstance(found[case.name], RankFailure), found[case.name].why
        for trace in found[case.name]:
            assert len(trace.steps) == 1 + case.loads, f"{case.name}: no step after it"
            *_, before, after = trace.steps
            assert after.applied == 0
            assert all(map(np.array_equal, before.weights, after.weights))
            assert "load" in trace.refused


def test_training_goes_on_with_another_number_of_ranks(harness, form, ranks):
    """From these ranks to one and back, and to the other numbers of ranks of the kind; ranks that train parameters for
    themselves have no weights in common to go on with.
    """
    kind, count = ranks
    if harness.rank_kinds[kind].own:
        pytest.skip(f"ranks of {kind!r} do not share all parameters")
    for other in {1, *harness.rank_kinds[kind].counts} - {count}:
        goes_on(harness, form, kind, count, other)
        if other == 1:
            goes_on(harness, form, kind, other, count)


@functools.cache
def first_half(backend, form, kind, count):
    """Train what every other number of ranks goes on from; return the state and the weights."""
    harness = load_harness(backend)
    rules = harness.rank_kinds[kind]
    first, _ = resumed(rules, count, count)
    (traces,) = harness.run_ranks(kind, count, form, [first]).values()
    state = follows_the_oracle(traces, first, rules, count, first.scale.initial_scale)
    return state, tuple(np.float32(each) for each in traces[0].steps[-1].weights)


def goes_on(harness, form, kind, before, after):
    rules = harness.rank_kinds[kind]
    state, weights = first_half(harness.backend, form, kind, before)
    second = replace(resumed(rules, before, after)[1], state=state, weights=weights)
    (traces,) = harness.run_ranks(kind, after, form, [second]).values()
    found = state["state"]
    follows_the_oracle(traces, second, rules, after, found["scale"], found["good_steps"])
