"""Small classifiers with layers that suffer from a number format, and trials of them for ``tune``."""

from __future__ import annotations

import math
from contextlib import contextmanager

import torch

import unifiedamp as ua
from unifiedamp.policy import Policy

WIDTH, CLASSES, ROWS, PADDING = 32, 16, 96, 4
FAINT = 1e-14
"""What the gradients of some layers are multiplied by; their learning rate makes up for it."""
SPIKE = 1e7
"""What the padding rows of some layers' inputs hold; the loss leaves them out."""


class Fade(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * FAINT


class Planted(torch.nn.Module):
    """Adds up the outputs of linear layers ``l0`` …, each applied to a separate part of the input; all are needed.

    ``faint`` ones have tiny gradients, ``spiked`` ones huge padding in their input.
    """

    def __init__(self, parts, faint=(), spiked=()):
        super().__init__()
        self.parts, self.faint, self.spiked = parts, faint, spiked
        for part in range(parts):
            layer = torch.nn.Linear(WIDTH, CLASSES)
            for param in layer.parameters():
                torch.nn.init.zeros_(param)
            setattr(self, f"l{part}", layer)

    def forward(self, x):
        total = 0.0
        for part in range(self.parts):
            out = getattr(self, f"l{part}")(x[part])
            total = total + (Fade.apply(out) if part in self.faint else out)
        return total

    def groups(self, rate):
        for part in range(self.parts):
            grown = rate / FAINT if part in self.faint else rate
            yield {"params": list(getattr(self, f"l{part}").parameters()), "lr": grown}


def trained(policy, make, loss_scale=None):
    """Return a session, and a step of a planted model on one batch."""
    rng = torch.Generator().manual_seed(0)
    amp = ua.Amp("torch", policy, loss_scale=loss_scale, device="cpu")
    model = make()
    x = torch.randn(model.parts, ROWS, WIDTH, generator=rng)
    labels = torch.einsum("prw,pwc->rc", x, torch.randn(model.parts, WIDTH, CLASSES, generator=rng)).argmax(-1)
    for part in model.spiked:
        x[part, -PADDING:] = SPIKE
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.groups(0.5)))

    def step():
        with amp.autocast():
            rows = model(x)[:-PADDING]
            loss = torch.nn.functional.cross_entropy(rows.float(), labels[:-PADDING])
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
        return float(loss.detach())

    return amp, step


class PlantedTrials:
    """Trials of a planted model in this process; ``steps`` counts those trained, ``counted`` those of forecasts."""

    def __init__(self, make, forecasts):
        self.make, self.forecasts = make, forecasts
        self.steps = self.counted = 0

    @contextmanager
    def open(self):
        yield self

    def probe(self, policy, scale, steps, clean):
        amp, step = trained(Policy.parse(policy), self.make, scale)
        found = {"losses": [], "skipped": [], "stopped": "", "layers": [f"l{n}" for n in range(self.make().parts)]}
        skipped = found["skipped"]
        try:
            while len(skipped) < steps and not (clean and len(skipped) - amp.skipped_steps >= clean):
                loss = step()
                found["losses"].append(loss if math.isfinite(loss) else None)
                skipped.append(amp.skipped_steps)
                self.steps += 1
        except ua.LossScaleExhausted as error:
            found["stopped"] = str(error)
        found["scale"] = amp.loss_scale
        amp.close()
        return found

    def count(self, steps):
        if not self.forecasts:
            raise ua.UnsupportedError("no forecast")
        amp, step = trained("float32", self.make)
        with amp.forecast(steps=steps) as run:
            while not run.done:
                step()
                self.counted += 1
        amp.close()
        return run.counted()
