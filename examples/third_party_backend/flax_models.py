"""The example's image classifiers in Flax NNX, for ``flax_classifier.py``.

Flax's kernels have the layout of the example's neutral weights, and optax's momentum has the unit of a gradient, so
nothing is transposed or scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from unifiedamp_jax import Optimizer

from examples.models.neutral import (
    NORM_EPSILON,
    NORM_KEEP,
    Weights,
    conv_sizes,
    dense_sizes,
    first_weights,
    numbered,
)
from unifiedamp.backend import errors
from unifiedamp.workloads.training.state import check_fits

IMAGE_AXES = (0, 1, 2, 3)
KINDS: dict[type, str] = {nnx.Conv: "conv", nnx.BatchNorm: "norm", nnx.Linear: "dense"}
FIELDS = {
    "conv": {"kernel": "kernel"},
    "norm": {"gamma": "scale", "beta": "bias", "mean": "mean", "variance": "var"},
    "dense": {"kernel": "kernel", "bias": "bias"},
}


def make_model(name: str, shape: Sequence[int], classes: int, seed: int) -> nnx.Sequential:
    """Return the ``conv`` or ``mlp`` model with its initial weights.

    Raises:
        UnsupportedError: another model was requested.
    """
    if name not in ("conv", "mlp"):
        raise errors.UnsupportedError(f"the example has no {name!r} in Flax; it has 'conv' and 'mlp'")
    rngs = nnx.Rngs(seed)
    dense = [nnx.Linear(*size, rngs=rngs) for size in dense_sizes(name, shape, classes)]
    body = [*_convs(conv_sizes(name, shape), rngs), *dense] if name == "conv" else _mlp(dense)
    model = nnx.Sequential(*body)
    import_weights(model, first_weights(name, shape, classes, seed))
    return model


def _convs(sizes: Sequence[tuple[int, int]], rngs: nnx.Rngs) -> list[Any]:
    layers: list[Any] = []
    for inputs, outputs in sizes:
        if layers:
            layers.append(_halve)
        layers += [
            nnx.Conv(inputs, outputs, (3, 3), use_bias=False, rngs=rngs),
            nnx.BatchNorm(outputs, momentum=NORM_KEEP, epsilon=NORM_EPSILON, rngs=rngs),
            nnx.relu,
        ]
    return [*layers, _mean_over_image]


def _mlp(dense: Sequence[nnx.Linear]) -> list[Any]:
    layers: list[Any] = [_flatten, dense[0]]
    for layer in dense[1:]:
        layers += [nnx.relu, layer]
    return layers


def _halve(x: jax.Array) -> jax.Array:
    return nnx.avg_pool(x, (2, 2), strides=(2, 2))


def _mean_over_image(x: jax.Array) -> jax.Array:
    return x.mean((1, 2))


def _flatten(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)


def make_optimizer(model: nnx.Module, learning_rate: float, momentum: float) -> Optimizer:
    """Return SGD."""
    return Optimizer(model, optax.sgd(learning_rate, momentum))


def loss_fn(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy of (n, classes) against (n,) labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def export_weights(model: nnx.Sequential) -> Weights:
    """Return the weights with neutral names."""
    return {name: np.asarray(variable.get_value(), np.float32) for name, _, variable in _variables(model)}


def import_weights(model: nnx.Sequential, weights: Weights) -> None:
    """Set the weights from neutral names."""
    variables = {name: variable for name, _, variable in _variables(model)}
    check_fits(weights, {name: variable.shape for name, variable in variables.items()})
    for name, variable in variables.items():
        variable.set_value(jax.numpy.asarray(weights[name], variable.dtype))


def export_momentum(model: nnx.Sequential, optimizer: Optimizer) -> Weights:
    """Return the momentum; zeros before the first step."""
    return {name: np.asarray(slot.get_value(), np.float64) for name, slot in _slots(model, optimizer).items()}


def import_momentum(model: nnx.Sequential, optimizer: Optimizer, momentum: Weights) -> None:
    """Set the momentum from neutral names."""
    slots = _slots(model, optimizer)
    check_fits(momentum, {name: slot.shape for name, slot in slots.items()})
    for name, slot in slots.items():
        slot.set_value(jax.numpy.asarray(momentum[name], slot.dtype))


def _variables(model: nnx.Sequential) -> Iterator[tuple[str, tuple[Any, ...], nnx.Variable]]:
    for layer_name, layer in numbered(model.layers, KINDS):
        index = next(i for i, one in enumerate(model.layers) if one is layer)
        for field, attribute in FIELDS[layer_name.rstrip("0123456789")].items():
            yield f"{layer_name}/{field}", ("layers", index, attribute), getattr(layer, attribute)


def _slots(model: nnx.Sequential, optimizer: Optimizer) -> dict[str, nnx.Variable]:
    traces = dict(nnx.to_flat_state(optimizer.opt_state[0].trace))
    return {name: traces[path] for name, path, variable in _variables(model) if isinstance(variable, nnx.Param)}


def download_fashion_mnist(_folder: Path) -> tuple[Any, Any, Any, Any]:
    """Refuse: JAX brings no data sets.

    Raises:
        UnsupportedError: always.
    """
    raise errors.UnsupportedError("JAX has no downloader of data sets")
