"""The toy's averages of weights: numpy arrays beside the parameters."""

from __future__ import annotations

import numpy as np

from unifiedamp.backend import Averaging, WeightAverage, ema_weight, errors


class ToyAverage(WeightAverage):
    """The average of one model; its counts and arrays are by optimizer."""

    def __init__(self, model, optimizers, decay, warmup, average_all):
        self.model, self.optimizers = model, optimizers
        self.decay, self.warmup, self._all = decay, warmup, average_all
        self.counts: dict[int, int] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.kept: dict[str, np.ndarray] | None = None
        self.stopped = False

    def names(self, optimizer):
        """Return name → parameter of those that an optimizer trains."""
        own = {id(p) for p in optimizer.parameters.values()}
        return {name: p for name, p in self.model.parameters.items() if id(p) in own}

    def moved_by(self):
        """Return the optimizers that train the model."""
        return [each for each in self.optimizers if self.names(each)]

    def begin(self, optimizer):
        """Before an optimizer's applied step."""
        for name, p in self.names(optimizer).items():
            if id(optimizer) not in self.counts or name not in self.arrays:
                self.arrays[name] = p.data.astype(np.float32)

    def end(self, optimizer):
        """After an optimizer's applied step."""
        n = self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        weight = np.float32(ema_weight(self.decay, self.warmup, n))
        for name, p in self.names(optimizer).items():
            self.arrays[name] = self.arrays[name] + weight * (p.data - self.arrays[name])

    def updates(self):
        return [self.counts.get(id(each), 0) for each in self.moved_by()]

    def read(self):
        found = {}
        for optimizer in self.moved_by():
            for name, p in self.names(optimizer).items():
                has = self.stopped or (id(optimizer) in self.counts and name in self.arrays)
                found[name] = (self.arrays[name] if has else p.data).astype(np.float32)
        return found

    def write(self, weights, updates):
        self.arrays = {name: np.array(value) for name, value in weights.items()}
        self.counts = {id(each): n for each, n in zip(self.moved_by(), updates, strict=True)}

    def restart(self):
        self.counts = {}

    def swap_in(self):
        averages = self.read()
        self.kept = {name: self.model.parameters[name].data for name in averages}
        for name, value in averages.items():
            self.model.parameters[name].data = value

    def swap_out(self):
        for name, value in (self.kept or {}).items():
            self.model.parameters[name].data = value
        self.kept = None

    def stop(self):
        self.arrays, self.optimizers, self.stopped = self.read(), list(self.optimizers), True
        self._all.remove(self)


class ToyAveraging(Averaging):
    """``averages`` is the list that training steps look at."""

    average_class = ToyAverage

    def __init__(self, optimizers, averages):
        self.optimizers, self.averages = optimizers, averages

    def start(self, model, decay, warmup):
        average = self.average_class(model, self.optimizers, decay, warmup, self.averages)
        if not average.moved_by():
            raise errors.PrepareError("amp.ema: no prepared optimizer trains a parameter of this model")
        self.averages.append(average)
        return average
