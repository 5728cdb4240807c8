"""A forecast names the layers that ``tune`` would find by training, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from planted import MODELS, trained, tuned

import unifiedamp as ua

BACKENDS = [name for name in ("torch", "tensorflow", "mxnet") if ua.available_backends()[name].installed]


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
@pytest.mark.parametrize(
    ("backend", "name"), [(each, name) for each in BACKENDS for name in MODELS if each == "torch" or name == "both"]
)
def test_a_forecast_names_the_layers_that_tune_finds(backend, name):
    """At least 90 % of them, by at most a tenth of the steps; and tune that begins with them finds the same."""
    hurt = MODELS[name][-1]
    plain, trials = tuned(backend, name, forecasts=False)
    assert plain.float32_layers == hurt
    assert plain.forecast_layers == []
    led, fewer = tuned(backend, name, forecasts=True)
    assert len(set(led.forecast_layers) & set(hurt)) >= 0.9 * len(hurt)
    assert led.forecast_layers == hurt, "and no layer that is well"
    assert led.float32_layers == hurt
    assert 10 * fewer.counted <= trials.steps
    assert fewer.steps < 0.8 * trials.steps


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_scale_does_not_count(backend):
    """Under bfloat16 with one, gradients are those of the loss."""
    largest = []
    for scale in (None, 2.0**10):
        amp, step = trained(backend, "mixed_bfloat16;emulate=true", parts=2, loss_scale=scale)
        with amp.forecast(steps=1) as run:
            step()
        largest.append([run.totals.layers["l0"].tensors[name].largest for name in ("gradient", "weight_gradient")])
        amp.close()
    np.testing.assert_allclose(largest[0], largest[1], rtol=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", ["mixed_float16;emulate=true", "mixed_float8;emulate=true"])
def test_float16_and_float8_sessions_are_refused(backend, policy):
    amp, _ = trained(backend, policy, parts=2)
    with pytest.raises(ua.PolicyError, match="run it under 'float32' or 'mixed_bfloat16'"):
        amp.forecast()
    amp.close()
