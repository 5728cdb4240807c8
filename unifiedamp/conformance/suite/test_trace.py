"""The canonical trace: seven steps, the fourth with an inf gradient, the same on every backend and form."""

import math

import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
GRADIENTS = (1.0, 1.0, 1.0, math.inf, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_canonical_trace(harness, form, bad):
    run = probe_run(harness, form, loss_scale=SCALE)
    weights, good, applied = [], [], []
    for gradient in GRADIENTS:
        run.feed(gradient if math.isfinite(gradient) else bad)
        weights.append(run.weights()[0])
        good.append(run.amp.state_dict()["state"]["good_steps"])
        applied.append(run.amp.applied_steps)
    assert weights == pytest.approx([0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.4], abs=1e-6)
    assert run.scales == [4.0, 4.0, 4.0, 8.0, 4.0, 4.0, 4.0]
    assert good == [1, 2, 0, 0, 1, 2, 0]
    assert applied == [1, 2, 3, 3, 4, 5, 6]
    assert run.amp.skipped_steps == 1
    assert run.amp.loss_scale == 8.0
