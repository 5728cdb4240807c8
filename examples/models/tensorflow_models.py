"""The recipe's models in Keras, version 2 or 3."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.workloads.training.state import check_fits

from . import resnet
from .neutral import NORM_EPSILON, NORM_KEEP, Weights, conv_sizes, dense_sizes, first_weights

keras = tf.keras
layers = keras.layers

IMAGE_AXES = (0, 1, 2, 3)
FIELDS = {
    "conv": {"kernel": "kernel"},
    "norm": {"gamma": "gamma", "beta": "beta", "mean": "moving_mean", "variance": "moving_variance"},
    "dense": {"kernel": "kernel", "bias": "bias"},
}


def make_model(name: str, shape: Sequence[int], classes: int, seed: int, width: int = resnet.WIDTH) -> Any:
    """Return the ``conv``, ``mlp`` or ``resnet50`` model with its initial weights; ``width`` is for ``resnet50``."""
    dense = [outputs for _, outputs in dense_sizes(name, shape, classes, width)]
    if name == "resnet50":
        model = _resnet(shape, width, dense)
    else:
        body = _conv(conv_sizes(name, shape), dense) if name == "conv" else _mlp(dense)
        model = keras.Sequential([keras.Input(shape), *body])
    import_weights(model, first_weights(name, shape, classes, seed, width))
    return model


def _resnet(shape: Sequence[int], width: int, dense: Sequence[int]) -> Any:
    number, relu = itertools.count(1), layers.ReLU

    def conv_norm(x: Any, kernel: int, stride: int, _inputs: int, outputs: int) -> Any:
        i = next(number)
        if kernel > 1:
            x = layers.ZeroPadding2D(kernel // 2)(x)  # padding="same" pads strided convolutions on two sides only
        return _norm(i)(layers.Conv2D(outputs, kernel, stride, use_bias=False, name=f"conv{i}")(x))

    pixels = keras.Input(tuple(shape))
    x = relu()(conv_norm(pixels, 3, 1, shape[-1], width))
    for block in resnet.blocks(width):
        one, two, three, *shortcut = block.convs
        y = relu()(conv_norm(x, *one))
        y = relu()(conv_norm(y, *two))
        y = conv_norm(y, *three)
        x = relu()(layers.add([y, conv_norm(x, *shortcut[0]) if shortcut else x]))
    (head,) = _dense(dense, [None])
    return keras.Model(pixels, head(layers.GlobalAveragePooling2D()(x)))


def _norm(number: int) -> Any:
    return layers.BatchNormalization(epsilon=NORM_EPSILON, momentum=NORM_KEEP, name=f"norm{number}")


def _conv(sizes: Sequence[tuple[int, int]], dense: Sequence[int]) -> list[Any]:
    body: list[Any] = []
    for i, (_, outputs) in enumerate(sizes, 1):
        if body:
            body.append(layers.AveragePooling2D(2))
        # Keras's default names count up from model to model, and layer_overrides would not match.
        body += [
            layers.Conv2D(outputs, 3, padding="same", use_bias=False, name=f"conv{i}"),
            _norm(i),
            layers.ReLU(),
        ]
    return [*body, layers.Flatten(), *_dense(dense, [None] * len(dense))]


def _mlp(dense: Sequence[int]) -> list[Any]:
    return [layers.Flatten(), *_dense(dense, ["relu"] * (len(dense) - 1) + [None])]


def _dense(sizes: Sequence[int], activations: Sequence[str | None]) -> list[Any]:
    """Return dense layers; the last, which gives the logits, always in float32."""
    dtypes = [None] * (len(sizes) - 1) + ["float32"]
    each = enumerate(zip(sizes, activations, dtypes, strict=True), 1)
    return [layers.Dense(n, activation, dtype=dtype, name=f"dense{i}") for i, (n, activation, dtype) in each]


def make_optimizer(model: Any, learning_rate: float, momentum: float) -> Any:
    """Return SGD."""
    return keras.optimizers.SGD(learning_rate, momentum)


def loss_fn(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of (n, classes) against (n,) labels."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def export_weights(model: Any, true: Weights | None = None) -> Weights:
    """Return the weights with neutral names and layouts.

    Args:
        model: one of this module's.
        true: the result of ``amp.master_weights(model)``, exported instead of the model's values.
    """
    if true is not None:
        return {name: true[native] for name, native in _native_names(model)}
    return {name: np.array(variable, np.float32) for name, variable in _variables(model)}


def import_weights(model: Any, weights: Weights, true: dict[str, Any] | None = None) -> None:
    """Set the weights from neutral names and layouts.

    Args:
        model: one of this module's.
        weights: weights with neutral names and layouts.
        true: the result of ``amp.master_weights(model)``; overwritten instead of the model's values, for
            ``amp.load_master_weights``.
    """
    variables = dict(_variables(model))
    check_fits(weights, {name: tuple(variable.shape) for name, variable in variables.items()})
    if true is not None:
        true.update({native: weights[name].astype(np.float32) for name, native in _native_names(model)})
        return
    for name, variable in variables.items():
        variable.assign(weights[name].astype(np.float32))


def export_momentum(model: Any, optimizer: Any) -> Weights:
    """Return the momentum in units of a gradient."""
    rate = _learning_rate(optimizer)
    return {name: np.array(slot, np.float64) / -rate for name, slot in _slots(model, optimizer)}


def import_momentum(model: Any, optimizer: Any, momentum: Weights) -> None:
    """Set the momentum from neutral names and layouts."""
    slots, rate = dict(_slots(model, optimizer)), _learning_rate(optimizer)
    check_fits(momentum, {name: tuple(slot.shape) for name, slot in slots.items()})
    for name, slot in slots.items():
        slot.assign((momentum[name].astype(np.float64) * -rate).astype(np.float32))


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(layer, attribute)) for name, layer, attribute in _fields(model))


def _native_names(model: Any) -> Iterator[tuple[str, str]]:
    return ((name, f"{layer.name}.{attribute}") for name, layer, attribute in _fields(model))


def _fields(model: Any) -> Iterator[tuple[str, Any, str]]:
    for layer in model.layers:
        for field, attribute in FIELDS.get(layer.name.rstrip("0123456789"), {}).items():
            yield f"{layer.name}/{field}", layer, attribute


def _slots(model: Any, optimizer: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "built", getattr(inner, "_built", False)):  # with master weights, it is built for those
        inner.build(model.trainable_variables)
    momentums = getattr(inner, "momentums", None) or []
    slots = {id(variable): slot for variable, slot in zip(model.trainable_variables, momentums, strict=False)}
    return ((name, slots[id(v)]) for name, v in _variables(model) if id(v) in slots)


def _learning_rate(optimizer: Any) -> float:
    return float(np.array(getattr(optimizer, "inner_optimizer", optimizer).learning_rate))


def download_fashion_mnist(folder: Path) -> tuple[Any, Any, Any, Any]:
    """Return training images and labels, test images and labels, with Keras's downloader (which has its own folder)."""
    train, test = keras.datasets.fashion_mnist.load_data()
    return (*train, *test)
