"""``amp.forecast`` on Gluon: activations of layers, convolutions, hybridized models, bfloat16 sessions."""

from __future__ import annotations

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import gluon

nn = gluon.nn


@pytest.mark.filterwarnings("ignore::unifiedamp.NoGainWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_kinds_of_layers_in_a_hybridized_model(policy):
    """Each value once; an activation comes after the output and its gradient; work is the multiplications."""
    amp = ua.Amp("mxnet", policy, device="cpu")
    with amp.scope():
        model = nn.HybridSequential()
        model.add(nn.Conv2D(4, 3, groups=2, activation="relu"), nn.Conv2DTranspose(3, 2), nn.Dense(16))
        model.initialize()
        trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.0}, update_on_kvstore=False)
    model, trainer = amp.prepare(model, trainer)

    @amp.compile
    def step(x):
        loss = amp.backward(lambda: (model(x) ** 2).mean(), trainer)
        amp.step(trainer)
        return loss

    x = amp.to_native(np.random.default_rng(0).normal(0, 1, (5, 2, 8, 8)).astype(np.float32))
    with amp.forecast(steps=1) as run:
        step(x)
    found = run.totals.layers
    assert [each.kind for each in found.values()] == ["Conv2D", "Conv2DTranspose", "Dense"]
    sizes = {name: int(each.counts.sum()) for name, each in found["0"].tensors.items()}
    assert sizes == {"weight": 36, "input": 640, "output": 720, "gradient": 720, "weight_gradient": 36}
    assert found["1"].tensors["input"].counts[0] > 200, "what the activation made zeros of"
    assert found["0"].tensors["output"].counts[0] == 0
    assert found["0"].tensors["gradient"].counts[0] > 200, "no gradient passes through the activation there"
    assert [each.work for each in found.values()] == [5 * 36 * 4 * 9, 5 * 36 * 4 * 12, 5 * 49 * 3 * 16]
    step(x)
    assert model._active
    amp.close()
