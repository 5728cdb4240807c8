"""Runs of Keras's ``fit`` whose gradients are chosen by the data, and what callbacks see in them."""

import math

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
SEVERAL = {"jit_compile": False, "steps_per_execution": 2}


def probe(form, values=(1.0,), **options):
    """A probe whose gradients are its input, compiled for ``fit``; fit(gradients) makes a batch of each."""
    amp = ua.Amp("tensorflow", "float32", **{"loss_scale": SCALE, **options})
    model, optimizer = amp.prepare(Probe(list(values)), keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss=lambda target, output: output, **form)

    def fit(gradients, callbacks, **arguments):
        x = np.float32(gradients).reshape(-1)
        arguments = {"batch_size": len(values), "shuffle": False, "verbose": 0, **arguments}
        return model.fit(x, np.zeros_like(x), callbacks=callbacks, **arguments)

    return amp, model, fit


class Each(keras.callbacks.Callback):
    """Writes down what it sees after each batch and epoch."""

    def __init__(self, amp=None):
        super().__init__()
        self.amp, self.batches, self.epochs, self.weights, self.good = amp, [], [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append({name: float(value) for name, value in logs.items()})
        if self.amp is not None:
            self.weights.append(float(self.model.ws[0].numpy()[0]))
            self.good.append(self.amp.state_dict()["state"]["good_steps"])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append({name: float(value) for name, value in logs.items()})
