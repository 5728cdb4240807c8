"""Runs with averages of weights, and what these must be."""

import math

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, probe_run, session

INF, NAN = math.inf, math.nan
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
FEEDS = (1.0, -2.0, INF, 0.5, NAN, NAN, 3.0, -1.0, 0.25, INF, 2.0)


class Averaged:
    """A probe run with an average, and what the average must be."""

    def __init__(self, harness, form="eager", decay=0.75, warmup=False, after=(), **options):
        self.run = probe_run(harness, form, **{"values": (1.0, -3.0), "loss_scale": SCALE} | options)
        self.amp, self.model = self.run.amp, self.run.model
        for feed in after:
            self.run.feed(feed, feed)
        self.ema = self.amp.ema(self.model, decay, warmup=warmup)
        self.oracle = AverageOracle(decay, warmup)

    def weights(self):
        return self.run.harness.parameters(self.model)

    def feed(self, value, applies=None):
        """One step; it is applied where the weights may follow the gradient."""
        before = self.weights()
        self.run.feed(value, 2 * value)
        if math.isfinite(value) if applies is None else applies:
            self.oracle.step(before, self.weights())

    def check(self):
        self.oracle.check(self.ema.weights())
        assert self.ema.updates == self.oracle.updates


def bits(arrays):
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


class Pair:
    """Two probe models with averages, an optimizer each."""

    def __init__(self, harness, form):
        self.harness, self.amp = harness, session(harness, form, loss_scale=SCALE)
        with self.amp.scope():
            models = [harness.probe([1.0]), harness.probe([2.0])]
            optimizers = [harness.sgd([model], 0.5) for model in models]
        prepared = self.amp.prepare(*models, *optimizers)
        self.models, self.optimizers = prepared[:2], prepared[2:]
        self.emas = [self.amp.ema(model, 0.5) for model in self.models]
        self.oracles = [AverageOracle(0.5), AverageOracle(0.5)]
        self.steps = [compiled(self.amp, form, self.trainer(index)) for index in range(2)]

    def trainer(self, index):
        def step(x):
            self.amp.backward(lambda: self.models[index](x), self.optimizers[index])
            self.amp.step(self.optimizers[index])

        return step

    def train(self, index, gradient):
        before = self.harness.parameters(self.models[index])
        self.steps[index](self.amp.to_native(np.float32([gradient])))
        if math.isfinite(gradient):
            self.oracles[index].step(before, self.harness.parameters(self.models[index]))
        for ema, oracle in zip(self.emas, self.oracles, strict=True):
            oracle.check(ema.weights())
            assert ema.updates == oracle.updates


class Stopped(Exception):
    """Raised by the tests."""
