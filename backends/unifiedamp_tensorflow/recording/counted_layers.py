"""Layers that are counted for a forecast, and the multiplications of a forward pass."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Float8Recipe, forecast

from .._types import Layer, Tensor, Variable
from ..internals import COMPUTE_ATTENTION, native, product_kernel
from ..precision import layers
from ..precision.float8_layers import rejection_reason

K: Any = tf.keras.layers
AT_INPUTS = (K.Conv1DTranspose, K.Conv2DTranspose, K.Conv3DTranspose)
"""Layers whose kernel is applied at each value of the input."""
COUNTED = (K.Dense, K.EinsumDense, K.Conv1D, K.Conv2D, K.Conv3D, K.DepthwiseConv2D, *AT_INPUTS)


class CountedLayer:
    """A layer that is counted.

    Args:
        path: the layer's.
        layer: the layer.

    Attributes:
        holds_layers: see ``ProductCounts``.
    """

    holds_layers = False

    def __init__(self, path: str, layer: Layer) -> None:
        self.path, self.layer = path, layer
        kind: Any = layers.original_class(layer)
        self.kind: str = kind.__name__
        why = rejection_reason(layer, layer.dtype_policy.name, None, Float8Recipe().multiple)
        self.float8 = "only dense layers are" if why is None else why

    def kernel(self) -> Variable | None:
        """Return the kernel; Keras 2's may cast itself when it is read."""
        return native(product_kernel(self.layer))

    def work(self, inputs: Tensor, output: Tensor) -> Tensor:
        """Return the multiplications of a forward pass, int64."""
        shape, layer = [int(size) for size in native(product_kernel(self.layer)).shape], self.layer
        if hasattr(layer, "equation"):
            given, _, _ = layer.equation.replace(" ", "").partition("->")
            left, _, right = given.partition(",")
            labels = [label for label in right if label != "."]
            per_input = math.prod(size for label, size in zip(labels, shape, strict=True) if label not in left)
            return tf.size(inputs, tf.int64) * per_input
        if isinstance(layer, K.Dense):
            return tf.size(inputs, tf.int64) * shape[-1]
        if isinstance(layer, AT_INPUTS):
            return tf.size(inputs, tf.int64) * math.prod(shape[:-1])
        kept = 2 if isinstance(layer, K.DepthwiseConv2D) else 1
        return tf.size(output, tf.int64) * math.prod(shape[:-kept])


class CountedAttention(CountedLayer):
    """The two products of a layer of attention; the dense layers inside it are counted by themselves."""

    holds_layers = True

    def __init__(self, path: str, layer: Layer) -> None:
        super().__init__(path, layer)
        self.float8 = forecast.NO_FLOAT8_ATTENTION

    def kernel(self) -> None:
        """Return None: no weight is multiplied."""

    def products(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the multiplications of both products, int64; tensors have shape (batch, …, heads, width)."""
        sizes = [tf.shape(each, tf.int64) for each in (query, key, value)]
        keys = tf.reduce_prod(sizes[1][1:-2])
        return tf.reduce_prod(sizes[0][:-1]) * keys * (sizes[0][-1] + sizes[2][-1])


def is_attention(layer: Layer) -> bool:
    """Whether a layer multiplies queries, keys and values in one separate method."""
    return callable(getattr(layer, COMPUTE_ATTENTION, None))
