"""``amp.forecast`` on torch: what ``tune`` would find by training, convolutions, recomputed layers, what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from planted import Planted, PlantedTrials, trained

import unifiedamp as ua
from unifiedamp.workloads.tries import Tries
from unifiedamp.workloads.tune.prober import Prober, TuneGoal

STEPS, SCALE = 25, 2.0**16
MODELS = {
    "gradients vanish in float16": ("mixed_float16", {"faint": (1, 3)}, ["l1", "l3"]),
    "inputs saturate float8": ("mixed_float8;emulate=true", {"spiked": (0, 2)}, ["l0", "l2"]),
    "both": ("mixed_float16", {"faint": (1,), "spiked": (3,)}, ["l1", "l3"]),
}


def tuned(policy, make, forecasts):
    """What ``tune`` finds of a policy; the steps that it trained for it, and those of the forecast."""
    trials = PlantedTrials(make, forecasts)
    prober = Prober(TuneGoal("torch", "off", STEPS, 0.05, 1, SCALE), trials, Tries(lambda *_: None))
    baseline = prober.find("float32", None)
    trials.steps = 0
    return prober.find(policy, baseline.loss), trials.steps, trials.counted


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_names_the_layers_that_tune_finds(name):
    """At least 90 % of them, by at most a tenth of the steps; and tune that begins with them finds the same."""
    policy, planted, hurt = MODELS[name]
    make = functools.partial(Planted, 6, **planted)
    plain, steps, _ = tuned(policy, make, forecasts=False)
    assert plain.float32_layers == hurt
    assert plain.forecast_layers == []
    led, fewer, counted = tuned(policy, make, forecasts=True)
    assert len(set(led.forecast_layers) & set(hurt)) >= 0.9 * len(hurt)
    assert led.forecast_layers == hurt, "and no layer that is well"
    assert led.float32_layers == hurt
    assert 10 * counted <= steps
    assert fewer < 0.8 * steps


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3, groups=2)
        self.back = torch.nn.ConvTranspose2d(4, 3, 2)

    def forward(self, x):
        return self.back(torch.utils.checkpoint.checkpoint(self.conv, x, use_reentrant=False))


def test_convolutions_and_layers_that_are_recomputed():
    """Each value once; work is the multiplications of the forward pass."""
    torch.manual_seed(0)
    amp = ua.Amp("torch", "float32", device="cpu")
    model = Convolutional()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.0))
    with amp.forecast(steps=1) as run:
        with amp.autocast():
            loss = model(torch.randn(5, 2, 8, 8)).square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
    layers = run.totals.layers
    assert {name: each.kind for name, each in layers.items()} == {"conv": "Conv2d", "back": "ConvTranspose2d"}
    sizes = {name: int(each.counts.sum()) for name, each in layers["conv"].tensors.items()}
    assert sizes == {"weight": 36, "input": 640, "output": 720, "gradient": 720, "weight_gradient": 36}
    assert layers["conv"].work == 5 * 4 * 6 * 6 * 9
    assert layers["back"].work == 5 * 4 * 6 * 6 * 3 * 2 * 2
    assert run.result().cell(run.result().layers[0], "float8").startswith("not in float8")
    amp.close()


def test_a_loss_scale_does_not_count():
    """Under bfloat16 with one, gradients are those of the loss."""
    largest = []
    for scale in (None, 2.0**10):
        amp, step = trained("mixed_bfloat16", functools.partial(Planted, 2), scale)
        with amp.forecast(steps=1) as run:
            step()
        largest.append([run.totals.layers["l0"].tensors[name].largest for name in ("gradient", "weight_gradient")])
        amp.close()
    np.testing.assert_allclose(largest[0], largest[1], rtol=0.01)


def test_float16_and_float8_sessions_are_refused():
    for policy in ("mixed_float16", "mixed_bfloat16;layers=l0:float16", "mixed_float8;emulate=true"):
        amp, _ = trained(ua.Policy.parse(policy), functools.partial(Planted, 2))
        with pytest.raises(ua.PolicyError, match="run it under 'float32' or 'mixed_bfloat16'"):
            amp.forecast()
        amp.close()
