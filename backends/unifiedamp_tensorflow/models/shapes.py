"""The sizes of a Keras model's matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LayerShapes, MatmulShape

from .._types import Layer, Model, Variable
from ..internals import query_kernel
from ..precision import layers

keras = tf.keras.layers
_CONVS = (keras.Conv1D, keras.Conv2D, keras.Conv3D)
_TRANSPOSED = (keras.Conv1DTranspose, keras.Conv2DTranspose, keras.Conv3DTranspose)
_DEPTHWISE = (getattr(keras, "DepthwiseConv1D", keras.DepthwiseConv2D), keras.DepthwiseConv2D)
_CELLS = (keras.LSTMCell, keras.GRUCell, keras.SimpleRNNCell)

Sizes = tuple[str, dict[str, int]]


class TensorFlowLayerShapes(LayerShapes):
    """One entry per built layer that multiplies matrices."""

    means = "Dense, convolutions, RNN cells, MultiHeadAttention"

    def matmul_shapes(self, models: Sequence[Model]) -> list[MatmulShape]:
        return list(_matmul_shapes(models))


def _matmul_shapes(models: Sequence[Model]) -> Iterator[MatmulShape]:
    for model in models:
        inside: set[int] = set()
        for path, layer in layers.walk(model):
            sizes = None if id(layer) in inside else _sizes(layer)
            if sizes:
                inside.update(id(child) for _, child in layers.walk(layer))
                yield MatmulShape(path or layer.name, *sizes, dtype=layer.compute_dtype)


def _sizes(layer: Any) -> Sizes | None:
    if isinstance(layer, keras.MultiHeadAttention):
        return _attention(layer)
    if isinstance(layer, keras.Dense):
        return _of_kernel("linear", layer, ("inputs", "outputs"))
    if isinstance(layer, (*_TRANSPOSED, *_CONVS)) and not isinstance(layer, _DEPTHWISE):
        return _conv(layer)
    if isinstance(layer, _CELLS):
        return _of_kernel("rnn", layer, ("inputs", "units"), layer.units)
    return None


def _shape(kernel: Variable | None) -> tuple[int, ...] | None:
    return None if kernel is None else tuple(kernel.shape)


def _of_kernel(kind: str, layer: Layer, names: tuple[str, str], outputs: int | None = None) -> Sizes | None:
    shape = _shape(getattr(layer, "kernel", None))
    return None if shape is None else (kind, dict(zip(names, (shape[0], outputs or shape[-1]), strict=True)))


def _conv(layer: Layer) -> Sizes | None:
    shape = _shape(getattr(layer, "kernel", None))
    groups = getattr(layer, "groups", 1)
    if shape is None or (shape[-2] == 1 and groups > 1):
        return None  # not built, or depthwise: no Tensor Core kernel, and padding makes none
    inputs, outputs = (shape[-1], shape[-2]) if isinstance(layer, _TRANSPOSED) else shape[-2:]
    return "conv", {"input channels": inputs, "output channels": outputs // groups}


def _attention(layer: Layer) -> Sizes | None:
    shape = _shape(query_kernel(layer))
    return None if shape is None else ("attention", {"embedding": shape[0], "head size": shape[-1]})
