"""Random settings and overflow patterns against an oracle written apart from the library."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.oracle import Oracle

GOOD = st.integers(-3, 3).map(float)
BAD = st.sampled_from([math.inf, -math.inf, math.nan])
POWERS = st.integers(-14, 24).map(lambda power: 2.0**power)


@st.composite
def scale_settings(draw):
    low, start, high = sorted(draw(st.tuples(POWERS, POWERS, POWERS)))
    return {
        "initial_scale": start,
        "min_scale": low,
        "max_scale": high,
        "growth_factor": draw(st.sampled_from([2.0, 4.0, 1.5])),
        "backoff_factor": draw(st.sampled_from([0.5, 0.25, 0.75])),
        "growth_interval": draw(st.integers(1, 5)),
        "hysteresis": draw(st.integers(1, 3)),
        "hysteresis_reset": draw(st.sampled_from(["good_step", "growth"])),
    }


def patterns(longest):
    step = st.tuples(GOOD, GOOD | st.one_of(GOOD, GOOD, BAD))
    return st.lists(step, min_size=4, max_size=longest)


def oracle_for(numbers, window):
    return Oracle(
        [1.0, -1.0],
        scale=numbers["initial_scale"],
        low=numbers["min_scale"],
        high=numbers["max_scale"],
        growth=numbers["growth_factor"],
        backoff=numbers["backoff_factor"],
        growth_interval=numbers["growth_interval"],
        hysteresis=numbers["hysteresis"],
        hysteresis_reset=numbers.get("hysteresis_reset", "good_step"),
        window=window,
    )


def follow(harness, form, numbers, gradients, window=1):
    """Drive backend and oracle side by side; compare every scale, and the rest at the end."""
    setting = ua.DynamicLossScale(**numbers, max_consecutive_skips=1000)
    run = probe_run(harness, form, values=(1.0, -1.0), loss_scale=setting, accumulate_steps=window)
    oracle = oracle_for(numbers, window)
    for pair in gradients:
        run.feed(*pair)
        oracle.feed(list(pair))
        assert run.amp.loss_scale == np.float32(oracle.scale)
    assert run.scales == [np.float32(scale) for scale in oracle.scales_used]
    assert run.weights() == pytest.approx(oracle.weights, rel=1e-5, abs=1e-4)
    state = run.amp.state_dict()["state"]
    counts = ("good_steps", "bad_steps", "applied_steps", "skipped_steps")
    assert tuple(state[name] for name in counts) == (oracle.good, oracle.bad, oracle.applied, oracle.skipped)
    run.amp.close()


def test_random_trajectories_follow_the_oracle(harness, request):
    """As many as ``--amp-trajectories`` says, eager."""
    count = request.config.getoption("--amp-trajectories")

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(scale_settings(), patterns(12))
    def check(numbers, gradients):
        follow(harness, "eager", numbers, gradients)

    check()


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("window", [1, 3])
def test_compiled_trajectories_follow_the_oracle(harness, form, window):
    """Fewer and longer: a compiled step is traced anew for each."""
    rng = np.random.default_rng(window)
    for turn in range(3):
        powers = sorted(2.0 ** rng.integers(-6, 12, 3))
        numbers = {
            "initial_scale": float(powers[1]),
            "min_scale": float(powers[0]),
            "max_scale": float(powers[2]),
            "growth_factor": 2.0,
            "backoff_factor": float(rng.choice([0.5, 0.25])),
            "growth_interval": int(rng.integers(1, 5)),
            "hysteresis": int(rng.integers(1, 4)),
            "hysteresis_reset": ("good_step", "growth")[turn % 2],
        }
        pattern = rng.integers(-3, 4, (60, 2)).astype(float)
        pattern[rng.random(60) < 0.2, int(rng.integers(2))] = rng.choice([math.inf, -math.inf, math.nan])
        follow(harness, form, numbers, pattern.tolist(), window)


def test_soak(harness, form, request):
    """``--amp-soak N`` steps with random overflows: every scale and every applied step."""
    steps = request.config.getoption("--amp-soak")
    if not steps:
        pytest.skip("no soak was asked for (--amp-soak N)")
    rng = np.random.default_rng(0)
    numbers = {"initial_scale": 2.0**16, "min_scale": 2.0**-14, "max_scale": 2.0**24, "growth_factor": 2.0}
    numbers |= {"backoff_factor": 0.5, "growth_interval": 7, "hysteresis": 1}
    setting = ua.DynamicLossScale(**numbers, max_consecutive_skips=1000)
    run = probe_run(harness, form, values=(1.0, -1.0), lr=2.0**-20, loss_scale=setting)
    oracle = oracle_for(numbers, 1)
    for step in range(steps):
        gradient = float(rng.choice([math.inf, math.nan])) if rng.random() < 0.12 else float(rng.integers(-1, 2))
        run.feed(1.0, gradient)
        oracle.feed([1.0, gradient])
        assert run.amp.loss_scale == oracle.scale, f"step {step}"
        assert run.amp.applied_steps == oracle.applied, f"step {step}"
