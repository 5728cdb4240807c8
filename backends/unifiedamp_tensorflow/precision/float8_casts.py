"""Rounding of matrices to float8 or a block format, by TensorFlow operations.

Bit-equal to ``unifiedamp.formats.scaled_rounding`` on normal float32 numbers. Arithmetic instead of casts: XLA of
TensorFlow 2.15 rounds twice on the way to float8, and the graph optimizer of 2.21 reports an error for each graph that
holds a float8 tensor. Numbers are scaled back. An inf or nan in a tensor makes something of it nan.
"""

from __future__ import annotations

import math

import tensorflow as tf

from unifiedamp.backend import BLOCK_FORMATS, FLOAT_FORMATS, LARGEST_SCALE, Float8Recipe, FloatFormat

from .._types import Tensor
from .block_rounding import amax_of, round_blocks
from .rounding import round_to

BLOCK = 128
"""Values of a row, and rows of a weight, that share a scale in block scaling."""
INPUT, WEIGHT, GRADIENT = "input", "weight", "gradient"
"""Operands."""

_E4M3, _E5M2, _BFLOAT16 = (FLOAT_FORMATS[name] for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16"))
_SIGN_AND_EXPONENT = -0x800000


def has_one_scale(recipe: Float8Recipe) -> bool:
    """Return whether a recipe scales whole tensors, so that the transposed operand holds the same numbers."""
    return recipe.scaling in ("tensorwise", "delayed")


def format_of(recipe: Float8Recipe, operand: str) -> FloatFormat:
    """Return the float8 format of an operand."""
    return _E5M2 if operand == GRADIENT and recipe.gradient_format == "e5m2" else _E4M3


def bfloat16(values: Tensor) -> Tensor:
    """Return float32 of values rounded to bfloat16."""
    return round_to(tf.cast(values, tf.float32), _BFLOAT16)


def round_tensor(values: Tensor, format: FloatFormat, known: Tensor | None) -> Tensor:
    """Return float32 values rounded by one scale.

    Args:
        values: float32, any shape.
        format: float8.
        known: the scale of delayed scaling, 0 for none yet; larger values saturate. None: the present largest
            magnitude's.
    """
    amax = amax_of(values)
    scale = tf.minimum(tf.constant(format.max) / amax, LARGEST_SCALE)
    if known is None:
        return round_to(values * scale, format) * tf.math.reciprocal(scale)
    ready = known > 0
    used = tf.where(ready, known, scale)
    scaled = values * used
    rounded = tf.where(ready, round_to(scaled, format, saturate=True), round_to(scaled, format))
    # Saturation makes an inf finite; the inverse scale tells of it instead.
    return rounded * tf.where(tf.math.is_finite(amax), tf.math.reciprocal(used), math.nan)


def round_matrix(values: Tensor, recipe: Float8Recipe, operand: str) -> Tensor:
    """Return a float32 matrix of shape (m, k) rounded by scales along k, of a recipe finer than the tensor."""
    if recipe.block_format:
        return round_blocks(values, BLOCK_FORMATS[recipe.block_format])
    if recipe.scaling == "rowwise":
        return _by_amax(values, amax_of(values, 1, True))
    high = BLOCK if operand == WEIGHT else 1
    shape = tf.shape(values)
    rows, columns = shape[0], shape[1]
    padded = tf.pad(values, [[0, -rows % high], [0, -columns % BLOCK]])
    wide = tf.shape(padded)
    tiles = tf.reshape(padded, [wide[0] // high, high, wide[1] // BLOCK, BLOCK])
    rounded = _by_amax(tiles, amax_of(tiles, [1, 3], True))
    return tf.reshape(rounded, wide)[:rows, :columns]


def _by_amax(values: Tensor, amax: Tensor) -> Tensor:
    """Round to e4m3 by powers of two."""
    scale = tf.minimum(tf.constant(_E4M3.max) / amax, LARGEST_SCALE)
    scale = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(scale, tf.int32), _SIGN_AND_EXPONENT), tf.float32)
    # Where there is an inf or nan, the scale may be any number: not all processors pass a nan on.
    inverse = tf.where(tf.math.is_finite(amax), tf.math.reciprocal(scale), math.nan)
    return round_to(values * scale, _E4M3) * inverse
