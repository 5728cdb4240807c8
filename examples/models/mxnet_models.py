"""The recipe's models in MXNet Gluon, version 1.9 or 2.0."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from unifiedamp.workloads.training.state import check_fits

from . import resnet
from .neutral import (
    NORM_EPSILON,
    NORM_KEEP,
    Weights,
    conv_sizes,
    dense_sizes,
    first_weights,
    from_channels_first,
    numbered,
    to_channels_first,
)

IMAGE_AXES = (0, 3, 1, 2)
KINDS = {nn.Conv2D: "conv", nn.BatchNorm: "norm", nn.Dense: "dense"}
FIELDS = {
    "conv": {"kernel": "weight"},
    "norm": {"gamma": "gamma", "beta": "beta", "mean": "running_mean", "variance": "running_var"},
    "dense": {"kernel": "weight", "bias": "bias"},
}


def make_model(name: str, shape: Sequence[int], classes: int, seed: int, width: int = resnet.WIDTH) -> Any:
    """Return the ``conv``, ``mlp`` or ``resnet50`` model with its initial weights; ``width`` is for ``resnet50``."""
    dense = dense_sizes(name, shape, classes, width)
    model = nn.HybridSequential()
    if name == "resnet50":
        model.add(*_resnet(shape[-1], width, dense))
    else:
        model.add(*(_conv(conv_sizes(name, shape), dense) if name == "conv" else _mlp(dense)))
    model.initialize()
    import_weights(model, first_weights(name, shape, classes, seed, width))
    return model


def _resnet(channels: int, width: int, dense: Sequence[tuple[int, int]]) -> list[Any]:
    stem = [_convolution(channels, width), _norm(width), nn.Activation("relu")]
    ((inputs, classes),) = dense
    head = [nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=inputs)]
    return [*stem, *(Bottleneck(block) for block in resnet.blocks(width)), *head]


class Bottleneck(nn.HybridBlock):
    """A block of ``resnet50``.

    Args:
        block: its sizes.
    """

    def __init__(self, block: resnet.Block) -> None:
        super().__init__()
        one, two, three, *shortcut = (
            (_convolution(inputs, outputs, kernel, stride), _norm(outputs))
            for kernel, stride, inputs, outputs in block.convs
        )
        self.relu, self.body, self.shortcut = nn.Activation("relu"), nn.HybridSequential(), nn.HybridSequential()
        self.body.add(*one, nn.Activation("relu"), *two, nn.Activation("relu"), *three)
        self.shortcut.add(*itertools.chain(*shortcut))

    def _forward(self, x: Any) -> Any:
        kept = self.shortcut(x) if len(self.shortcut) else x
        return self.relu(self.body(x) + kept)

    if mx.__version__.startswith("1."):

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            """(n, inputs, h, w) → (n, outputs, h / stride, w / stride), of arrays or symbols."""
            return self._forward(x)

    else:
        forward = _forward


def _conv(sizes: Sequence[tuple[int, int]], dense: Sequence[tuple[int, int]]) -> list[Any]:
    layers: list[Any] = []
    for inputs, outputs in sizes:
        if layers:
            layers.append(nn.AvgPool2D(2))
        layers += [
            _convolution(inputs, outputs),
            _norm(outputs),
            nn.Activation("relu"),
        ]
    return [*layers, nn.Flatten(), *(nn.Dense(n, in_units=m) for m, n in dense)]


def _norm(channels: int) -> Any:
    return nn.BatchNorm(epsilon=NORM_EPSILON, momentum=NORM_KEEP, in_channels=channels)


def _convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> Any:
    layer = nn.Conv2D(outputs, kernel, stride, kernel // 2, use_bias=False, in_channels=inputs)
    # MXNet 2.0 ignores in_channels and would defer initialization.
    layer.weight.shape = (outputs, inputs, kernel, kernel)
    return layer


def _mlp(dense: Sequence[tuple[int, int]]) -> list[Any]:
    *hidden, (inputs, classes) = dense
    layers = [nn.Dense(n, activation="relu", in_units=m) for m, n in hidden]
    return [nn.Flatten(), *layers, nn.Dense(classes, in_units=inputs)]


def make_optimizer(model: Any, learning_rate: float, momentum: float) -> gluon.Trainer:
    """Return a Trainer with SGD, updating in the worker so that steps can be skipped."""
    settings = {"learning_rate": learning_rate, "momentum": momentum}
    return gluon.Trainer(model.collect_params(), "sgd", settings, update_on_kvstore=False)


_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def loss_fn(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of (n, classes) against (n,) labels."""
    return _cross_entropy(logits, labels).mean()


def export_weights(model: Any) -> Weights:
    """Return the weights with neutral names and layouts."""
    return {name: _to_neutral(model, name, p.data()).astype(np.float32) for name, p in _parameters(model)}


def import_weights(model: Any, weights: Weights) -> None:
    """Set the weights from neutral names and layouts."""
    parameters = dict(_parameters(model))
    check_fits(weights, {name: _to_neutral(model, name, p.data()).shape for name, p in parameters.items()})
    for name, parameter in parameters.items():
        # Not a numpy array: a used weight may be in oneDNN's blocked layout.
        parameter.set_data(_from_neutral(model, name, weights[name], parameter.list_data()[0]))


def export_momentum(model: Any, trainer: gluon.Trainer) -> Weights:
    """Return the momentum in units of a gradient; zeros before the first step."""
    states = trainer._updaters[0].states
    found = {}
    for name, parameter in _trained(model):
        state = states.get(_index(trainer, parameter))
        velocity = parameter.data() * 0 if state is None else state
        found[name] = _to_neutral(model, name, velocity) / -trainer.learning_rate
    return found


def import_momentum(model: Any, trainer: gluon.Trainer, momentum: Weights) -> None:
    """Set the momentum on every device from neutral names and layouts."""
    trained = dict(_trained(model))
    check_fits(momentum, {name: _to_neutral(model, name, p.data()).shape for name, p in trained.items()})
    for name, parameter in trained.items():
        index = _index(trainer, parameter)
        velocity = momentum[name] * -trainer.learning_rate
        for updater, weight in zip(trainer._updaters, parameter.list_data(), strict=True):
            # MXNet 2.0 also stores momentum as nd arrays.
            state = _from_neutral(model, name, velocity, weight).as_nd_ndarray() if trainer.optimizer.momentum else None
            updater.states[index], updater.states_synced[index] = state, True


def _layers(model: Any) -> Iterator[Any]:
    for layer in _children(model):
        parts = (layer.body, layer.shortcut) if isinstance(layer, Bottleneck) else ()
        yield from itertools.chain(*map(_children, parts)) if parts else [layer]


def _children(sequence: Any) -> list[Any]:
    return [sequence[i] for i in range(len(sequence))]


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for layer_name, layer in numbered(_layers(model), KINDS):
        for field, attribute in FIELDS[layer_name.rstrip("0123456789")].items():
            yield f"{layer_name}/{field}", getattr(layer, attribute)


def _trained(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, parameter) for name, parameter in _parameters(model) if parameter.grad_req != "null")


def _index(trainer: gluon.Trainer, parameter: Any) -> int:
    return next(i for i, known in enumerate(trainer._params) if known is parameter)


def _channels(model: Any) -> int:
    return [1, *(p.shape[0] for name, p in _parameters(model) if name.startswith("conv"))][-1]


def _to_neutral(model: Any, name: str, array: Any) -> Any:
    return np.array(from_channels_first(name, array.asnumpy(), _channels(model)), np.float64, order="C")


def _from_neutral(model: Any, name: str, array: Any, like: Any) -> Any:
    tensor = mx.nd.from_numpy(to_channels_first(name, array, _channels(model)), zero_copy=False)
    if not isinstance(like, mx.np.ndarray):
        return tensor.as_in_context(like.context)
    return tensor.as_np_ndarray().to_device(like.device)


def download_fashion_mnist(folder: Path) -> tuple[Any, Any, Any, Any]:
    """Return training images and labels, test images and labels, with Gluon's downloader."""
    parts = [gluon.data.vision.FashionMNIST(str(folder), train=train) for train in (True, False)]
    return tuple(array for part in parts for array in (part._data.asnumpy(), np.asarray(part._label)))
