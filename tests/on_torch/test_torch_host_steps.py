"""Loops that others own, where each step of an optimizer is an iteration and the loop zeroes gradients."""

import math

import numpy as np
import pytest
import torch

import unifiedamp as ua
from unifiedamp.integrations.host_steps import HostSteps
from unifiedamp_torch.conformance.harness import harness

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)


@pytest.mark.parametrize("several", [1, 2])
def test_each_step_has_the_findings_of_its_own_gradients(several):
    """What the step before found is forgotten, of this optimizer and of another one."""
    steps = HostSteps(ua.Amp("torch", "float32", loss_scale=SCALE, device="cpu"), "backward", "step")
    models = [harness.probe([1.0]) for _ in range(several)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.125) for model in models]
    for model in models:
        steps.add_model(model)
    steps.add_optimizers(optimizers)
    weights, scale, good = [1.0] * several, 4.0, 0
    for count, gradient in enumerate((1.0, 2.0, math.inf, 1.0, 0.5, math.inf, math.inf, 3.0)):
        index = count % several
        optimizers[index].zero_grad()
        steps.backward(models[index](torch.tensor([gradient])))
        finite = math.isfinite(gradient)
        assert steps.step(optimizers[index]).applied is finite
        good = good + 1 if finite else 0
        scale = scale / 2 if not finite else scale * 2 if good == 2 else scale
        good %= 2
        if finite:
            weights[index] -= 0.125 * gradient
        found = [float(harness.parameters(model)["w0"][0]) for model in models]
        np.testing.assert_allclose(found, weights, rtol=1e-6)
        assert steps.amp.loss_scale == scale
