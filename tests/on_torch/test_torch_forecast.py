"""``amp.forecast`` on torch: convolutions, recomputed layers."""

from __future__ import annotations

import torch

import unifiedamp as ua


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
