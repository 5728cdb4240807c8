"""A model whose step is captured or not, for tests of captured steps; a tape stands in for the GPU on a CPU."""

from __future__ import annotations

import math

import torch
from loops import batch, mlp, pretend_reads_sync, weights
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import CapturedStep
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates
from unifiedamp_torch.training.compiled_update import Updates

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
STEPS = 20


class Trained:
    """A model under a session, and a step that is captured or not."""

    def __init__(self, monkeypatch, captured, *, policy="float32", loss_scale=SCALE, fused=True, optimizer="AdamW",
                 body=None, drop=0.0, model=None, updates=False, **options):  # fmt: skip
        if not torch.cuda.is_available():
            pretend_reads_sync(monkeypatch)
        self.amp = ua.Amp("torch", policy, loss_scale=loss_scale, **options)
        model = torch.nn.Sequential(mlp() if model is None else model(), torch.nn.Dropout(drop)).to(
            self.amp.backend.device.native
        )
        extra = {"momentum": 0.9} if optimizer == "SGD" else {}
        native = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, fused=fused, **extra)
        self.model, self.optimizer = self.amp.prepare(model, native)
        self.stage, self.updates = None, Updates() if updates else None  # as in modes "max" and "default"
        step = lambda x, y: (body or plain)(self, x, y)  # noqa: E731
        self.step = self._captured(step) if captured else step

    def _captured(self, step):
        backend, device = self.amp.backend, self.amp.backend.device.native
        if device.type == "cuda":
            compiled = self.amp.compile(step, mode="max" if self.updates else "default")
            self.captured = compiled.__wrapped__ if hasattr(compiled, "__wrapped__") else compiled
            return compiled
        self.stage, rates = TapeCapturer(), DeviceLearningRates(device)
        context = CaptureContext(self.stage, rates, backend.compiler.steps, backend.spec, device.type, backend.recorder)
        return CapturedStep(step, context, self.amp._loop.order, backend.compiler.must_run, self.updates)

    def feed(self, seed, bad=False, size=32):
        x, y = (each[:size].to(self.amp.backend.device.native) for each in batch(seed))
        if bad:
            x[0] = math.inf
        return self.step(x, y)


class Recorded(Trained):
    """The captured step as ``amp.compile`` gives it on a GPU."""

    def _captured(self, step):
        captured = super()._captured(step)
        if self.stage is None:
            self.inner = self.captured
            return captured
        self.inner = captured
        return self.amp._compiled.follow(captured)


def plain(run, x, y):
    amp, optimizer = run.amp, run.optimizer
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(run.model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.clip_grad_norm(optimizer, 1.0)
    amp.step(optimizer)
    return loss


def both(monkeypatch, feed, **options):
    """Run ``feed(run, i)`` for each step, uncaptured and captured; return the two runs and what they gave."""
    runs = [Trained(monkeypatch, captured, **options) for captured in (False, True)]
    given = []
    for run in runs:
        torch.manual_seed(3)
        given.append([feed(run, i) for i in range(STEPS)])
    return runs, given


def assert_same(runs, given):
    eager, captured = runs
    assert captured.amp.state_dict()["state"] == eager.amp.state_dict()["state"]
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    for one, other in zip(weights(eager.model), weights(captured.model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    if captured.stage is not None:
        assert captured.stage.replays > 0
