"""How the scale changes: at any factor, to its bounds and never past them, in every form."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

INF = math.inf

SETTINGS = {
    "a factor that passes the ceiling": {"initial_scale": 4.0, "growth_factor": 3.0, "max_scale": 100.0},
    "a factor of no power of two": {
        "initial_scale": 3.0,
        "growth_factor": 1.1,
        "backoff_factor": 0.3,
        "min_scale": 0.5,
    },
    "the largest float32": {"initial_scale": 2.0**126, "growth_factor": 3.0, "max_scale": 3.0e38},
    "growth past the largest float32": {"initial_scale": 2.0**100, "growth_factor": 2.0**60, "max_scale": 2.0**127},
    "a floor between two steps": {"initial_scale": 8.0, "backoff_factor": 0.3, "min_scale": 1.0},
    "no room at all": {"initial_scale": 4.0, "min_scale": 4.0, "max_scale": 4.0},
    "patient": {"initial_scale": 16.0, "growth_interval": 2, "hysteresis": 3},
    "patient at the floor": {"initial_scale": 2.0, "min_scale": 1.0, "hysteresis": 2, "backoff_factor": 0.25},
    "patient until growth": {
        "initial_scale": 16.0,
        "growth_interval": 2,
        "hysteresis": 3,
        "hysteresis_reset": "growth",
    },
    "patient at the ceiling": {"initial_scale": 4.0, "growth_factor": 3.0, "max_scale": 10.0, "hysteresis": 2},
}
PATTERN = [0.0, 0.0, INF, 0.0, INF, INF, math.nan, 0.0, 0.0, 0.0, INF, INF, INF, INF, INF, 0.0, 0.0, 0.0, 0.0]


def by_hand(settings, pattern):
    """Return the scale before each step, in float32, from the rules as the documentation words them."""
    chosen = {"growth_interval": 1, "hysteresis": 1, "growth_factor": 2.0, "backoff_factor": 0.5} | settings
    low, high = (
        np.float32(chosen.get(name, other)) for name, other in (("min_scale", 2.0**-14), ("max_scale", 2.0**24))
    )
    until_growth = chosen.get("hysteresis_reset") == "growth"
    scale, good, bad, seen = np.float32(chosen["initial_scale"]), 0, 0, []
    for gradient in pattern:
        seen.append(float(scale))
        if not math.isfinite(gradient):
            good, bad = 0, bad + 1
            if bad >= chosen["hysteresis"]:
                scale = max(low, np.float32(float(scale) * chosen["backoff_factor"]))
            continue
        good, bad = good + 1, bad if until_growth else 0
        if good == chosen["growth_interval"]:
            grown = float(scale) * chosen["growth_factor"]
            scale, good, bad = (high if grown >= float(high) else np.float32(grown)), 0, 0
    return [*seen, float(scale)]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_scale_at_every_step(harness, form, name):
    settings = {"growth_interval": 1} | SETTINGS[name]
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(**settings))
    for gradient in PATTERN:
        run.feed(gradient)
    assert [*run.scales, run.amp.loss_scale] == pytest.approx(by_hand(settings, PATTERN), rel=2.0**-23)
    assert run.amp.skipped_steps == sum(not math.isfinite(gradient) for gradient in PATTERN)
    assert run.amp.applied_steps == sum(math.isfinite(gradient) for gradient in PATTERN)


@pytest.mark.parametrize("bound", ["min_scale", "max_scale"])
def test_a_bound_is_met_exactly(harness, form, bound):
    settings = {"initial_scale": 7.0, "growth_factor": 1.7, "backoff_factor": 0.6, "growth_interval": 1}
    settings |= {"min_scale": 2.3, "max_scale": 19.7}
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(**settings))
    for _ in range(6):
        run.feed(INF if bound == "min_scale" else 0.0)
    assert run.amp.loss_scale == float(np.float32(settings[bound]))
    assert run.scales[-1] == run.amp.loss_scale


def test_the_run_of_bad_steps_is_counted(harness, form):
    """``bad_steps`` is part of the state: it begins anew after a finite step, hysteresis or not."""
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=4.0, hysteresis=3))
    seen = []
    for gradient in (INF, INF, 1.0, INF, INF, INF, INF, 1.0, 1.0):
        run.feed(gradient)
        state = run.amp.state_dict()["state"]
        seen.append((state["bad_steps"], state["good_steps"], state["scale"]))
    assert seen == [
        (1, 0, 4.0), (2, 0, 4.0), (0, 1, 4.0), (1, 0, 4.0), (2, 0, 4.0), (3, 0, 2.0), (4, 0, 1.0), (0, 1, 1.0),
        (0, 2, 1.0),
    ]  # fmt: skip


def test_a_static_scale_never_moves(harness, form):
    run = probe_run(harness, form, loss_scale=ua.StaticLossScale(3.0))
    for gradient in PATTERN:
        run.feed(gradient)
    assert {*run.scales, run.amp.loss_scale} == {3.0}


@pytest.mark.parametrize("limit", [1, 2, 4])
@pytest.mark.parametrize("finite_before", [0, 1])
def test_exhaustion_comes_at_the_limit_and_not_before(harness, form, limit, finite_before):
    """At once where looking is free, within 50 steps more elsewhere; a skip fewer never stops a run."""
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=4.0, max_consecutive_skips=limit))
    for _ in range(30 if run.amp.backend.device.reads_without_sync else 60):
        for _ in range(limit - 1):
            run.feed(INF)
        run.feed(1.0)
    for _ in range(finite_before):
        run.feed(1.0)
    fed = len(run.scales)
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(limit + 55):
            run.feed(INF)
    skipped = len(run.scales) - fed
    assert skipped == limit if run.amp.backend.device.reads_without_sync else limit <= skipped <= limit + 50
    assert caught.value.skips == skipped
    assert caught.value.scale == run.amp.loss_scale


def test_a_run_of_skips_goes_on_after_a_load(harness):
    """Saved a skip before the limit, loaded, and stopped at the limit."""
    setting = ua.DynamicLossScale(initial_scale=4.0, max_consecutive_skips=3)
    first, second = (probe_run(harness, loss_scale=setting) for _ in range(2))
    for _ in range(2):
        first.feed(INF)
    second.amp.load_state_dict(first.amp.state_dict())
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            second.feed(INF)
    assert caught.value.skips == 3 or not second.amp.backend.device.reads_without_sync
    assert caught.value.tensors == tuple(harness.parameters(second.model))


def test_a_static_scale_is_exhausted_too(harness, form):
    run = probe_run(harness, form, loss_scale=ua.StaticLossScale(4.0, max_consecutive_skips=3))
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(60):
            run.feed(INF)
    assert caught.value.scale == 4.0
    assert caught.value.skips == 3 or not run.amp.backend.device.reads_without_sync


def test_an_observer_that_comes_late_delays_nothing(harness):
    """Plugged in a skip before the limit, it changes nothing about when a run is stopped."""

    class Observer:
        heard = ()

        def on_scale_exhausted(self, state, report):
            self.heard += (state.bad_steps,)

    amp = session(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, max_consecutive_skips=3))
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x, observer = amp.to_native(np.float32([INF])), Observer()
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for step in range(60):
            if step == 2:
                amp.observe(observer)
            amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)
    assert caught.value.skips == 3
    assert observer.heard == (3,)
    assert caught.value.tensors == tuple(harness.parameters(model))


def test_a_run_of_finite_steps_longer_than_the_interval(harness, form):
    """Saved under a longer interval: it ends with the next finite step."""
    saved = session(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0)).state_dict()
    saved["state"] |= {"good_steps": 100}
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=3))
    with pytest.warns(ua.StateWarning, match="growth_interval"):
        run.amp.load_state_dict(saved)
    assert run.amp.state_dict()["state"]["good_steps"] == 2
    for expected in (8.0, 8.0, 8.0, 16.0):
        run.feed(1.0)
        assert run.amp.loss_scale == expected


def test_a_static_scale_is_the_sessions_own(harness, form):
    """Whatever scale a loaded state has."""
    run = probe_run(harness, form, loss_scale=8.0)
    state = run.amp.state_dict()
    with pytest.warns(ua.StateWarning):
        run.amp.load_state_dict(state | {"state": state["state"] | {"scale": 2.0}})
    run.feed(1.0)
    assert (run.amp.loss_scale, run.weights()) == (8.0, [pytest.approx(0.9, abs=1e-6)])


@pytest.mark.parametrize("unscaled", [False, True])
def test_gradients_are_divided_by_a_large_scale_once(harness, unscaled):
    """Its reciprocal is close to the smallest normal float32, and a backend may divide in another way."""
    clip = (lambda amp, optimizer: amp.clip_grad_value(optimizer, 4.0)) if unscaled else None
    run = probe_run(harness, values=(1.0, 1.0), clip=clip, loss_scale=2.0**122)
    for _ in range(2):
        run.feed(1.0, 2.0)
    assert run.weights() == pytest.approx([0.8, 0.6], abs=1e-6)
