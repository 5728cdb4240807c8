"""The toy on several ranks: each process averages the gradients of all, which it is given."""

from __future__ import annotations

import numpy as np

from unifiedamp.conformance.ranks import LEARNING_RATE, owned

from . import autograd as toy


class ToySide:
    """One rank, which is one process."""

    def __init__(self, rank):
        self.rank = rank

    def options(self):
        return {"backend": "toy"}

    def make(self, case):
        parameters = {f"w{i}": toy.Tensor(value.copy()) for i, value in enumerate(case.weights)}

        def forward(model, rows):
            terms = [toy.total(toy.mul(p, row)) for p, row in zip(model.parameters.values(), rows, strict=True)]
            return toy.add(toy.add(terms[0], terms[1]), terms[2])

        model = toy.Model(parameters, forward)
        optimizers = [toy.Sgd([model], LEARNING_RATE, case.momentum) for _ in owned(case.optimizers)]
        for optimizer, part in zip(optimizers, owned(case.optimizers), strict=True):
            optimizer.parameters = {name: optimizer.parameters[name] for name in [f"w{i}" for i in part]}
        return model, optimizers

    def batch(self, ranks):
        with np.errstate(invalid="ignore"):
            return [toy.Tensor(np.mean(column, axis=0, dtype=np.float32)) for column in zip(*ranks, strict=True)]

    def loss(self, model, batch):
        return model(batch)

    def spread(self, step, compile):
        return compile(step)

    def norms(self, returned, amp):
        return [tuple(float(norm.data) for norm in returned)]

    def weights(self, model):
        return [tuple(p.data.astype(np.float64) for p in model.parameters.values())]
