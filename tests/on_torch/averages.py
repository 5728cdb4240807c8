"""Helpers for tests of ``amp.ema``: steps with finite or infinite gradients, and comparison of averages."""

import math

import numpy as np
import torch
from loops import batch

import unifiedamp as ua

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
BAD = (False, False, True, False, True, True, False, False, False)


def values(model):
    return {name: param.detach().numpy().copy() for name, param in model.named_parameters()}


def feed(amp, model, optimizer, index, bad):
    x, y = batch(index)
    x = torch.where(torch.tensor(bad), x * math.inf, x)
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    return amp.step(optimizer).applied


def check(found, expected, rtol=3e-6):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-7, err_msg=name)
