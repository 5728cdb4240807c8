"""Framework-neutral description of the models: shapes, initial weights, names and layouts in checkpoints.

Layers are numbered by kind in forward order: ``conv1 norm1 conv2 norm2 … dense1 dense2 …``. Their arrays, always
float32 for weights:

| name                                | layout                                    | trained |
| ----------------------------------- | ----------------------------------------- | ------- |
| ``conv<i>/kernel``                  | (height, width, inputs, outputs), no bias | yes     |
| ``norm<i>/gamma``, ``norm<i>/beta`` | (channels,)                               | yes     |
| ``norm<i>/mean``, ``norm<i>/variance`` | (channels,), the running averages      | no      |
| ``dense<i>/kernel``                 | (inputs, outputs)                         | yes     |
| ``dense<i>/bias``                   | (outputs,)                                | yes     |

Image inputs of the first dense layer are in the order (height, width, channel).

Momentum has the names and layouts of the trained arrays. Its unit is that of a gradient, ``v ← momentum · v +
gradient``, as in PyTorch; Keras and MXNet store ``-learning_rate · v``. It is saved in float64, so that conversions do
not change a bit.

All three frameworks compute the same: 3x3 convolutions with one pixel of zero padding, batch norm with ``NORM_EPSILON``
and running averages that keep ``NORM_KEEP`` of their old value each step, ReLU, and 2x2 average pooling (max pooling
would break ties differently); for ``resnet50`` see ``resnet.py``. One difference remains: PyTorch and Keras 2 update
the running variance with the unbiased variance, Keras 3 and MXNet with the biased one. Training is not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import resnet

Weights = dict[str, npt.NDArray[Any]]

NORM_EPSILON = 1e-3
NORM_KEEP = 0.9
CHANNELS = (16, 32, 64)
"""Channels of the convolutions of ``conv``; the image is halved after each but the last."""
UNITS = (256, 256, 256)
"""Units of the hidden layers of ``mlp``."""


def dense_sizes(name: str, shape: Sequence[int], classes: int, width: int = resnet.WIDTH) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of each dense layer, for images of ``shape`` (height, width, channels)."""
    if name == "resnet50":
        return [(resnet.blocks(width)[-1].outputs, classes)]
    rows, columns, channels = shape
    halvings = len(CHANNELS) - 1
    flat = (rows >> halvings) * (columns >> halvings) * CHANNELS[-1]
    sizes = [flat] if name == "conv" else [rows * columns * channels, *UNITS]
    return list(zip(sizes, [*sizes[1:], classes], strict=True))


def conv_sizes(name: str, shape: Sequence[int], width: int = resnet.WIDTH) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of each convolution; empty for ``mlp``."""
    return [kernel[2:] for kernel in conv_kernels(name, shape, width)]


def conv_kernels(name: str, shape: Sequence[int], width: int = resnet.WIDTH) -> list[tuple[int, int, int, int]]:
    """Return the shape (height, width, inputs, outputs) of each convolution's kernel."""
    if name == "resnet50":
        return [(size, size, inputs, outputs) for size, _, inputs, outputs in resnet.convs(shape[-1], width)]
    sizes = zip([shape[-1], *CHANNELS], CHANNELS, strict=False) if name == "conv" else ()
    return [(3, 3, inputs, outputs) for inputs, outputs in sizes]


def first_weights(name: str, shape: Sequence[int], classes: int, seed: int, width: int = resnet.WIDTH) -> Weights:
    """Return He-normal weights from numpy's generator, the same for every framework."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    zeros = resnet.zero_norms(width) if name == "resnet50" else ()
    for i, kernel in enumerate(conv_kernels(name, shape, width), 1):
        weights[f"conv{i}/kernel"] = _he_normal(rng, kernel)
        for key, value in (("gamma", float(i not in zeros)), ("beta", 0.0), ("mean", 0.0), ("variance", 1.0)):
            weights[f"norm{i}/{key}"] = np.full(kernel[-1], value, np.float32)
    for i, (inputs, outputs) in enumerate(dense_sizes(name, shape, classes, width), 1):
        weights[f"dense{i}/kernel"] = _he_normal(rng, (inputs, outputs))
        weights[f"dense{i}/bias"] = np.zeros(outputs, np.float32)
    return weights


def _he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[:-1]))).astype(np.float32)


def numbered(layers: Iterable[Any], kinds: Mapping[type, str]) -> Iterator[tuple[str, Any]]:
    """Yield (``conv1``, layer), … for the layers of the given ``kinds``, in order."""
    counts: dict[str, int] = {}
    for layer in layers:
        kind = next((name for cls, name in kinds.items() if isinstance(layer, cls)), None)
        if kind:
            counts[kind] = counts.get(kind, 0) + 1
            yield f"{kind}{counts[kind]}", layer


def from_channels_first(name: str, array: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Return an array of PyTorch's or MXNet's layout in the neutral one.

    Args:
        name: the array's neutral name.
        array: kernels are (outputs, inputs, height, width) or (outputs, inputs), flattened images (channel, pixel).
        channels: of the last convolution; 1 without one.
    """
    if name.startswith("conv"):
        return array.transpose(2, 3, 1, 0)
    if name == "dense1/kernel":
        return array.reshape(len(array), channels, -1).transpose(2, 1, 0).reshape(-1, len(array))
    return array.T


def to_channels_first(name: str, array: npt.NDArray[Any], channels: int) -> npt.NDArray[np.float32]:
    """Return the inverse of :func:`from_channels_first`, float32 and contiguous."""
    if name.startswith("conv"):
        array = array.transpose(3, 2, 0, 1)
    elif name == "dense1/kernel":
        outputs = array.shape[1]
        array = array.reshape(-1, channels, outputs).transpose(2, 1, 0).reshape(outputs, -1)
    else:
        array = array.T
    return np.array(array, np.float32, order="C")
