"""Averages beside torch's own calls, inside regions and inference mode, and after closing."""

import math

import numpy as np
import pytest
import torch
from averages import SCALE, check, feed, values
from loops import batch, mlp, session

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle


def test_steps_of_torchs_own_form_move_it(mover):
    from unifiedamp.compat.torch_cuda_amp import GradScaler

    scaler = GradScaler(init_scale=4.0)
    amp = session(loss_scale=SCALE)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    scaler = amp.backend.interop.scaler
    for x in (1.0, math.inf, 2.0, 1.0):
        before = values(model)
        scaler.scale(model(torch.tensor([[x]])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isfinite(x):
            oracle.step(before, values(model))
        check(ema.weights(), oracle.values)
    with ema.swapped():
        scaler.scale(model(torch.tensor([[1.0]])).sum()).backward()
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            scaler.step(optimizer)
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def test_swapping_inside_a_region_forgets_the_casts_in_its_cache():
    amp = session("mixed_bfloat16")
    model = torch.nn.Linear(4, 4)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=8.0))
    ema = amp.ema(model, 0.5)
    x = torch.ones(2, 4)
    for _ in range(2):
        amp.backward(lambda: model(x).float().square().sum(), optimizer)
        assert amp.step(optimizer).applied
    with amp.autocast():
        own = model(x)
        with ema.swapped():
            averaged = model(x)
        again = model(x)
    assert torch.equal(own, again)
    assert not torch.equal(own, averaged)


def test_made_in_inference_mode():
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with torch.inference_mode():
        ema = amp.ema(model, 0.5)
    own = None
    for index in range(2):
        feed(amp, model, optimizer, index, False)
        own = values(model)
        with torch.inference_mode(), ema.swapped():
            model(batch()[0])
        assert all(np.array_equal(value, own[name]) for name, value in values(model).items())


def test_a_closed_session_leaves_nothing_on_optimizers():
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema = amp.ema(model, 0.5)
    feed(amp, model, optimizer, 0, False)
    with ema.swapped():
        pass
    amp.close()
    assert not optimizer._optimizer_step_pre_hooks
