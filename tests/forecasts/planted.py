"""Small classifiers with layers that suffer from a number format, on any backend, and trials of them for ``tune``."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import unifiedamp as ua
from unifiedamp.workloads.tries import Tries
from unifiedamp.workloads.tune.prober import Prober, TuneGoal

PARTS, WIDTH, CLASSES, ROWS, PADDING = 6, 32, 16, 96, 4
FAINT = 1e-14
"""What the gradients of some layers are multiplied by; their learning rate makes up for it."""
SPIKE = 1e7
"""What the padding rows of some layers' inputs hold; the loss leaves them out."""
RATE, STEPS, SCALE = 0.5, 25, 2.0**16
MODELS = {
    "gradients vanish in float16": ("mixed_float16;emulate=true", {"faint": (1, 3)}, ["l1", "l3"]),
    "inputs saturate float8": ("mixed_float8;emulate=true", {"spiked": (0, 2)}, ["l0", "l2"]),
    "both": ("mixed_float16;emulate=true", {"faint": (1,), "spiked": (3,)}, ["l1", "l3"]),
}
"""Name → policy, troubles, and the layers that they are in. ``emulate`` rounds as the formats do and is faster here."""


class Built(NamedTuple):
    """A planted model of one framework, which adds up the outputs of linear layers ``l0`` …

    Each layer takes a separate part of the input; all are needed. The outputs of ``faint`` ones have tiny gradients.

    Attributes:
        model: takes an array of shape (parts, rows, width).
        optimizer: SGD, at a rate that makes up for the tiny gradients.
        loss: cross entropy of the first rows of the output, given their labels.
    """

    model: Any
    optimizer: Any
    loss: Callable[[Any, Any], Any]


def trained(backend, policy, faint=(), spiked=(), parts=PARTS, loss_scale=None):
    """Return a session, and a step of a planted model on one batch."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (parts, ROWS, WIDTH)).astype(np.float32)
    labels = np.einsum("prw,pwc->rc", x, rng.normal(0, 1, (parts, WIDTH, CLASSES))).argmax(-1)[:-PADDING]
    for part in spiked:
        x[part, -PADDING:] = SPIKE
    amp = ua.Amp(backend, policy, loss_scale=loss_scale, device="cpu")
    with amp.scope():
        built = importlib.import_module(f"planted_{backend}").build(parts, faint)
    model, optimizer = amp.prepare(built.model, built.optimizer)
    batch, wanted = amp.to_native(x), amp.to_native(labels.astype(np.int64))

    def step():
        loss = amp.backward(lambda: built.loss(model(batch), wanted), optimizer)
        amp.step(optimizer)
        return float(np.reshape(amp.to_numpy(loss), ()))

    return amp, step


class PlantedTrials:
    """Trials of a planted model in this process; ``steps`` counts those trained, ``counted`` those of forecasts.

    ``make`` is :func:`trained` of a backend and its troubles.
    """

    def __init__(self, make, forecasts):
        self.make, self.forecasts = make, forecasts
        self.steps = self.counted = 0

    @contextmanager
    def open(self):
        yield self

    def probe(self, policy, scale, steps, clean):
        amp, step = self.make(policy, loss_scale=scale)
        found = {"losses": [], "skipped": [], "stopped": "", "layers": [f"l{n}" for n in range(PARTS)]}
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
        amp, step = self.make("float32")
        with amp.forecast(steps=steps) as run:
            while not run.done:
                step()
                self.counted += 1
        amp.close()
        return run.counted()


def tuned(backend, name, forecasts):
    """Return what ``tune`` finds of a planted model, and its trials, which count the steps for it."""
    policy, troubles, _ = MODELS[name]
    trials = PlantedTrials(functools.partial(trained, backend, **troubles), forecasts)
    prober = Prober(TuneGoal(backend, "off", STEPS, 0.05, 1, SCALE), trials, Tries(lambda *_: None))
    baseline = prober.find("float32", None)
    trials.steps = 0
    return prober.find(policy, baseline.loss), trials
