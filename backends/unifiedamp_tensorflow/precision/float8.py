"""Dense layers in float8, a block format or bfloat16 by the recipes of ``Policy.recipe``; emulated on any device.

The three products of a layer are float32 products of operands that are rounded along the dimension that each sums over
(see ``float8_casts``). Where scales are finer than the tensor, the gradient of the weight is rounded to bfloat16, which
is what the hardware's kernels return. An inf or nan makes an operand nan, and the product: the finite check sees it.

Keras 3's own float8 (``model.quantize("float8")``) is not used: its gradient fails outside
``tf.function`` (TensorFlow 2.21, Keras 3.15: "too many values to unpack"), its clipping turns an inf into a finite
number, and its scales are trainable variables that an optimizer must know to overwrite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import Float8Recipe

from .._types import Dense, Tensor
from ..internals import kernel, native
from .autocast import thread
from .float8_casts import (
    GRADIENT,
    INPUT,
    WEIGHT,
    bfloat16,
    format_of,
    has_one_scale,
    round_matrix,
    round_tensor,
)
from .float8_scales import LayerScales

NAME = "float8"


class Labels(NamedTuple):
    """The dimensions of a product ``x,w->out``, a letter for each, as in ``tf.einsum``."""

    x: str
    w: str
    out: str


MATRICES = Labels("ab", "bc", "ac")


class Products:
    """The three products of a layer.

    Args:
        recipe: the session's.
        labels: of its dimensions.
        scales: of delayed scaling; else None.
    """

    def __init__(self, recipe: Float8Recipe, labels: Labels, scales: LayerScales | None) -> None:
        self._recipe, self._labels, self._scales = recipe, labels, scales

    def run(self, x: Tensor, w: Tensor) -> Tensor:
        """Return the float32 product of x and the weight, whose gradient is made of the other two."""
        labels, recipe = self._labels, self._recipe
        known = None if self._scales is None else self._scales.now()

        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no annotations
        def product(x: Tensor, w: Tensor) -> Any:
            low = recipe.fprop == NAME
            out = self._product((x, labels.x, INPUT), (w, labels.w, WEIGHT), labels.out, low, known)
            if low and recipe.scaling == "block128":
                out = bfloat16(out)  # what the hardware's product returns, before the bias
            return out, lambda gradient: self._gradients(x, w, gradient, known)

        return product(x, w)

    def _gradients(self, x: Tensor, w: Tensor, gradient: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
        labels, recipe = self._labels, self._recipe
        if self._scales is not None:
            self._scales.note(x, w, gradient)
        of_gradient = (gradient, labels.out, GRADIENT)
        low = recipe.dgrad == NAME
        dx = self._product(of_gradient, (w, labels.w, WEIGHT), labels.x, low, known)
        low = recipe.wgrad == NAME
        dw = self._product(of_gradient, (x, labels.x, INPUT), labels.w, low, known)
        if not low or not has_one_scale(recipe):
            dw = bfloat16(dw)
        return tf.cast(bfloat16(dx), x.dtype), tf.cast(dw, w.dtype)

    def _product(
        self, a: tuple[Tensor, str, str], b: tuple[Tensor, str, str], out: str, low: bool, known: Tensor | None
    ) -> Tensor:
        """Return the product of two operands: (tensor, its labels, which it is)."""
        summed = "".join(label for label in a[1] if label in b[1] and label not in out)
        operands = [self._operand(*each, summed, low, known) for each in (a, b)]
        return tf.einsum(f"{a[1]},{b[1]}->{out}", *operands)

    def _operand(
        self, tensor: Tensor, labels: str, operand: str, summed: str, low: bool, known: Tensor | None
    ) -> Tensor:
        """Return float32 of a tensor, rounded along the dimensions that its product sums over."""
        if not low:
            return bfloat16(tensor)
        values = tf.cast(tensor, tf.float32)
        if has_one_scale(self._recipe):
            scale = None if known is None else known[(INPUT, WEIGHT, GRADIENT).index(operand)]
            return round_tensor(values, format_of(self._recipe, operand), scale)
        kept = [label for label in labels if label not in summed]
        order = [labels.index(label) for label in (*kept, *summed)]
        moved = tf.transpose(values, order)
        shape = tf.shape(moved)
        matrix = tf.reshape(moved, [tf.reduce_prod(shape[: len(kept)]), tf.reduce_prod(shape[len(kept) :])])
        rounded = tf.reshape(round_matrix(matrix, self._recipe, operand), shape)
        return tf.transpose(rounded, [order.index(place) for place in range(len(order))])


def call(recipe: Float8Recipe, scales: LayerScales | None, layer: Dense, inputs: Tensor) -> Tensor | None:
    """Return the output of a Dense or EinsumDense layer for ``inputs`` of shape (…, inputs) in float8.

    None where its own call runs: in regions of other policies, and on inputs that are not dense floating tensors.
    """
    if thread.compute not in (None, NAME) or not isinstance(inputs, tf.Tensor) or not inputs.dtype.is_floating:
        return None
    weights = tf.convert_to_tensor(native(kernel(layer)))
    if hasattr(layer, "equation"):
        out = Products(recipe, labels_of(layer.equation, inputs.shape.rank), scales).run(inputs, weights)
    else:
        out = _matmul(Products(recipe, MATRICES, scales), inputs, weights)
    if layer.bias is not None:
        out = out + tf.cast(layer.bias, tf.float32)
    out = tf.cast(out, layer.compute_dtype)
    return out if layer.activation is None else layer.activation(out)


def _matmul(products: Products, inputs: Tensor, weights: Tensor) -> Tensor:
    """Return the product over the last dimension of inputs of any rank."""
    if inputs.shape.rank == 2:
        return products.run(inputs, weights)
    columns = weights.shape.as_list()
    out = products.run(tf.reshape(inputs, [-1, columns[0]]), weights)
    out = tf.reshape(out, tf.concat([tf.shape(inputs)[:-1], columns[1:]], 0))
    if inputs.shape.rank is not None:
        out.set_shape([*inputs.shape.as_list()[:-1], columns[1]])
    return out


def labels_of(equation: str, rank: int) -> Labels:
    """Return the labels of an EinsumDense layer's equation; letters that it does not use take an ellipsis' place."""
    operands, _, out = equation.replace(" ", "").partition("->")
    x, _, w = operands.partition(",")
    free = [letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter not in equation]
    more = "".join(free[: max(rank - len(x.replace(".", "")), 0)])
    return Labels(x.replace("...", more), w.replace("...", ""), out.replace("...", more))
