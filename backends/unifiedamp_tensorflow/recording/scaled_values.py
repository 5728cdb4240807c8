"""Values of a matrix times the scales of their rows or blocks, eager and traced; see ``forecast.SCALINGS``."""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import FLOAT_FORMATS

from .._types import Tensor
from ..precision.rounding import round_to

E4M3, E2M1 = FLOAT_FORMATS["float8_e4m3fn"], FLOAT_FORMATS["float4_e2m1fn"]
WIDTHS = {"block128": 128, "block32": 32, "block16": 16}
LARGEST_SCALE, SMALLEST = 2.0**126, 2.0**-126
_EXPONENT, _ONE_TWICE = 0x7F800000, 0x7F000000


def scale_values(matrix: Tensor, scaling: str, square: bool) -> Tensor:
    """Return float32 values of shape (m, k) times their scales; bit-equal to ``unifiedamp.backend.rounding``'s.

    Args:
        matrix: float32; products sum over its second dimension, whose size is known.
        scaling: of ``SCALINGS``.
        square: of "block128": blocks of 128 rows, as of weights.
    """
    rows, columns = tf.shape(matrix)[0], int(matrix.shape[1])
    width, height = WIDTHS.get(scaling, columns), 128 if square and scaling == "block128" else 1
    padded = tf.pad(matrix, [[0, tf.math.floormod(-rows, height)], [0, -columns % width]])
    across = (columns + width - 1) // width
    blocks = tf.reshape(padded, [-1, height, across, width])
    amax = tf.reduce_max(tf.abs(blocks), [1, 3], keepdims=True)
    scaled = _two_levels(blocks, amax) if scaling == "block16" else blocks * _scale(amax, scaling)
    found: Tensor = tf.reshape(scaled, [-1, across * width])[:rows, :columns]
    return found


def _scale(amax: Tensor, scaling: str) -> Tensor:
    found: Tensor
    if scaling == "block32":
        power = tf.maximum(_power_of_two(amax), SMALLEST)
        # TensorFlow's reciprocal of a vector is not exact; that of a power of two is a subtraction of exponents.
        found = tf.bitcast(_ONE_TWICE - tf.bitcast(power, tf.int32), tf.float32)
    else:
        found = _power_of_two(tf.minimum(tf.constant(E4M3.max) / amax, LARGEST_SCALE))
    return found


def _power_of_two(values: Tensor) -> Tensor:
    found: Tensor = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), _EXPONENT), tf.float32)
    return found


def _two_levels(blocks: Tensor, amax: Tensor) -> Tensor:
    tensor = tf.maximum(tf.reduce_max(amax) / (E2M1.max * E4M3.max), SMALLEST)
    scale = round_to(amax / E2M1.max / tensor, E4M3) * tensor
    lost = tf.where(tf.equal(blocks, 0), 0.0, SMALLEST)
    found: Tensor = tf.where(scale > 0, blocks / tf.where(scale > 0, scale, 1.0), lost)
    return found
