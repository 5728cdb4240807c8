"""Rounding float32 matrices to a block format, by TensorFlow operations; bit-equal to
``unifiedamp.formats.round_blocks`` but for what TensorFlow's kernels make of subnormal float32 numbers, which is zeros.

Largest magnitudes are found among bits, because ``tf.reduce_max`` may pass over a nan.
"""

from __future__ import annotations

import math

import tensorflow as tf

from unifiedamp.backend import FLOAT_FORMATS, BlockFormat, FloatFormat

from .._types import Tensor
from .rounding import round_to

_E4M3 = FLOAT_FORMATS["float8_e4m3fn"]
_SMALLEST_SCALE = 2.0**-126
_MAGNITUDE, _INFINITY, _MANTISSA_BITS = 0x7FFFFFFF, 0x7F800000, 23


def amax_of(values: Tensor, axis: int | list[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the largest magnitude of float32 values, inf or nan where one is; 0 of none."""
    magnitudes = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), _MAGNITUDE)
    largest = tf.reduce_max(magnitudes, axis, keepdims)
    return tf.bitcast(tf.maximum(largest, 0), tf.float32)  # that of nothing is the least integer


def round_blocks(values: Tensor, format: BlockFormat) -> Tensor:
    """Return the values as the block format holds them, times their scales, as float32.

    Args:
        values: float32 of shape (m, k); blocks lie along the last dimension, and zeros fill the last one.
        format: of the blocks. An inf or nan makes its block nan, or in NVFP4 the tensor.
    """
    shape = tf.shape(values)
    rows, columns = shape[0], shape[1]
    padded = tf.pad(values, [[0, 0], [0, -columns % format.size]])
    blocks = tf.reshape(padded, [rows, -1, format.size])
    amax = amax_of(blocks, -1, True)
    rounded = _BY_SCALE[format.scale](blocks, amax, format.element)
    return tf.reshape(rounded, tf.shape(padded))[:, :columns]


def _power_of_two(blocks: Tensor, amax: Tensor, element: FloatFormat) -> Tensor:
    bits = tf.bitcast(amax, tf.int32)
    exponent = tf.bitwise.right_shift(bits, _MANTISSA_BITS) - element.max_exponent
    scale = tf.bitcast(tf.bitwise.left_shift(tf.maximum(exponent, 1), _MANTISSA_BITS), tf.float32)
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return tf.where(bits >= _INFINITY, math.nan, rounded)


def _two_levels(blocks: Tensor, amax: Tensor, element: FloatFormat) -> Tensor:
    largest = amax_of(amax)
    tensor = tf.maximum(largest / (element.max * _E4M3.max), _SMALLEST_SCALE)
    scale = round_to(amax / element.max / tensor, _E4M3, saturate=True) * tensor
    rounded = round_to(blocks / tf.where(scale > 0, scale, 1.0), element, saturate=True) * scale
    return tf.where(tf.math.is_finite(largest), rounded, math.nan)


def _float32(blocks: Tensor, amax: Tensor, element: FloatFormat) -> Tensor:
    scale = tf.maximum(amax / element.max, _SMALLEST_SCALE)
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return tf.where(tf.math.is_finite(amax), rounded, math.nan)


_BY_SCALE = {"e8m0": _power_of_two, "e4m3": _two_levels, "float32": _float32}
