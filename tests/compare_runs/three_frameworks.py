"""One small network with convolutions, a batch norm and dense layers, recorded by each framework in its own layout."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.recorded import Kept
from unifiedamp.recording.reading import Recording

RNG = np.random.default_rng(0)
WEIGHTS = {
    "conv.weight": RNG.normal(0, 0.3, (4, 2, 3, 3)), "conv.bias": RNG.normal(0, 0.1, 4),
    "norm.weight": RNG.uniform(0.5, 1.5, 4), "norm.bias": RNG.normal(0, 0.1, 4),
    "hidden.weight": RNG.normal(0, 0.1, (16, 144)), "hidden.bias": RNG.normal(0, 0.1, 16),
    "head.weight": RNG.normal(0, 0.3, (3, 16)), "head.bias": RNG.normal(0, 0.1, 3),
}  # fmt: skip
"""In torch's layouts; the batch norm has running statistics besides."""
BATCHES = [
    (np.random.default_rng(seed).normal(size=(8, 2, 6, 6)).astype(np.float32), np.arange(8) * (seed + 1) % 3)
    for seed in range(3)
]
"""Images with channels first, and labels."""


def torch_parts(weights: Any, rate: float, epsilon: float, dropout: float) -> Any:
    import torch

    nn = torch.nn
    model = nn.Sequential()
    for name, layer in {
        "conv": nn.Conv2d(2, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "relu": nn.ReLU(), "flat": nn.Flatten(),
        "hidden": nn.Linear(144, 16), "act": nn.ReLU(), **({"drop": nn.Dropout(dropout)} if dropout else {}),
        "head": nn.Linear(16, 3),
    }.items():  # fmt: skip
        model.add_module(name, layer)
    with torch.no_grad():
        for name, value in weights.items():
            model.get_parameter(name).copy_(torch.from_numpy(np.float32(value)))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate)
    if epsilon:
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=epsilon)
    return model, optimizer, lambda x: x, lambda z, y: torch.nn.functional.cross_entropy(z, y.long())


def tensorflow_parts(weights: Any, rate: float, epsilon: float, dropout: float) -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((6, 6, 2)), layers.Conv2D(4, 3, padding="same", name="stem"),
        layers.BatchNormalization(epsilon=1e-5, name="stem_norm"), layers.ReLU(), layers.Flatten(),
        layers.Dense(16, activation="relu", name="fc"), *([layers.Dropout(dropout)] if dropout else []),
        layers.Dense(3, name="logits"),
    ])  # fmt: skip
    hidden = weights["hidden.weight"].reshape(16, 4, 6, 6).transpose(2, 3, 1, 0).reshape(144, 16)
    stem, norm, fc, logits = (model.get_layer(name) for name in ("stem", "stem_norm", "fc", "logits"))
    stem.set_weights([weights["conv.weight"].transpose(2, 3, 1, 0), weights["conv.bias"]])
    norm.set_weights([weights["norm.weight"], weights["norm.bias"], np.zeros(4), np.ones(4)])
    fc.set_weights([hidden, weights["hidden.bias"]])
    logits.set_weights([weights["head.weight"].T, weights["head.bias"]])
    optimizer = tf.keras.optimizers.SGD(rate)
    if epsilon:
        optimizer = tf.keras.optimizers.Adam(rate, epsilon=epsilon)

    def loss(z: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(z, tf.float32)))

    return model, optimizer, lambda x: x.transpose(0, 2, 3, 1), loss


def mxnet_parts(weights: Any, rate: float, epsilon: float, dropout: float) -> Any:
    from unifiedamp_mxnet.mxnet_api import from_numpy, gluon, mx

    nn = gluon.nn
    model = nn.HybridSequential()
    model.add(
        nn.Conv2D(4, 3, padding=1, in_channels=2), nn.BatchNorm(in_channels=4, epsilon=1e-5), nn.Activation("relu"),
        nn.Flatten(), nn.Dense(16, activation="relu", in_units=144), *([nn.Dropout(dropout)] if dropout else []),
        nn.Dense(3, in_units=16),
    )  # fmt: skip
    model.initialize()
    model(from_numpy(np.zeros((1, 2, 6, 6), np.float32), mx.cpu()))  # MXNet 2 makes a convolution's weights only now
    layers = {"conv": 0, "norm": 1, "hidden": 4, "head": 6 if dropout else 5}
    for name, value in weights.items():
        layer, _, own = name.partition(".")
        own = {"weight": "gamma", "bias": "beta"}[own] if layer == "norm" else own
        getattr(model[layers[layer]], own).set_data(from_numpy(np.float32(value), mx.cpu()))
    options: dict[str, float] = {"epsilon": epsilon} if epsilon else {}
    trainer = gluon.Trainer(model.collect_params(), "adam" if epsilon else "sgd", {"learning_rate": rate, **options})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return model, trainer, lambda x: x, lambda z, y: loss(z, y).mean()


PARTS = {"torch": torch_parts, "tensorflow": tensorflow_parts, "mxnet": mxnet_parts}


@functools.cache
def recorded(
    backend: str, policy: str = "float32", compiled: bool = False, rate: float = 0.1, epsilon: float = 0.0,
    dropout: float = 0.0, wrong: str = "", labels: int = 9, data: int = 9,
) -> Recording:  # fmt: skip
    """Record three steps; each option but the first three may plant a divergence.

    Args:
        backend, policy, compiled: of the run.
        rate, epsilon: of the optimizer: Adam where there is an epsilon, else SGD.
        dropout: of a layer before the head.
        wrong: a weight that begins with other values.
        labels, data: the step from which they are others.
    """
    amp = ua.Amp(backend, policy, loss_scale=8.0)
    weights = {name: value * (1.25 if name == wrong else 1.0) for name, value in WEIGHTS.items()}
    with amp.scope():
        model, optimizer, layout, loss_fn = PARTS[backend](weights, rate, epsilon, dropout)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x: Any, y: Any) -> Any:
        loss = amp.backward(lambda: loss_fn(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    step, kept = amp.compile(step) if compiled else step, Kept()
    with contextlib.closing(amp), amp.record(kept, every=1, compare=True):
        for number, (images, classes) in enumerate(BATCHES, 1):
            x = layout(images[:, ::-1] if number >= data else images)
            y = np.int32((classes + (number >= labels)) % 3)
            step(amp.to_native(np.ascontiguousarray(x)), amp.to_native(y))
    return kept.recording()
