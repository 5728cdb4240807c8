"""State saved at any step, under any backend, goes on under any other as if nothing had happened."""

import json
import math

import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.harness import load_harness

GRADIENTS = (1.0, 1.0, 1.0, math.inf, math.inf, 1.0, 1.0, 1.0, 1.0, 1.0)
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3, hysteresis=2)


def whole(harness):
    run = probe_run(harness, loss_scale=SCALE)
    states = []
    for gradient in GRADIENTS:
        run.feed(gradient)
        states.append(run.amp.state_dict()["state"])
    return run.scales, states


def test_resuming_at_every_step_under_any_backend(harness, peer):
    scales, states = whole(harness)
    for stop in range(1, len(GRADIENTS)):
        first = probe_run(load_harness(peer), loss_scale=SCALE)
        for gradient in GRADIENTS[:stop]:
            first.feed(gradient)
        saved = json.loads(json.dumps(first.amp.state_dict()))
        second = probe_run(harness, loss_scale=SCALE)
        second.amp.load_state_dict(saved)
        for gradient in GRADIENTS[stop:]:
            second.feed(gradient)
        assert first.scales + second.scales == scales
        assert second.amp.state_dict()["state"] == states[-1]


def test_loading_into_a_compiled_step_takes_effect_at_once(harness, form):
    run = probe_run(harness, form, loss_scale=SCALE)
    run.feed(1.0)
    state = run.amp.state_dict()
    state["state"]["scale"] = 1024.0
    run.amp.load_state_dict(state)
    run.feed(1.0)
    assert run.scales == [4.0, 1024.0]
    assert run.weights() == pytest.approx([0.8], abs=1e-6)
