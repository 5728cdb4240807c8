"""Moments as float8 numbers with a scale for a block of them: ``unifiedamp.backend.state_rounding``, bit for bit.

A moment is kept as bytes: the E4M3 codes of its numbers, then the float32 scales of their blocks, lowest byte first.
Each rounding is a ``tf.function``, as in ``bfloat16_rounding``; all of it is arithmetic that XLA has too.
"""

from __future__ import annotations

import math

import tensorflow as tf

from unifiedamp.backend import state_rounding

from .._types import Tensor
from ..precision.rounding import bits_and, shifted_left, shifted_right, traced, uint32
from .bfloat16_rounding import noise

BLOCK = state_rounding.BLOCK
SCALE_BYTES = 4
_FLOATS, _BYTES = tf.TensorSpec(None, tf.float32), tf.TensorSpec([None], tf.uint8)
_KEY, _SIZE = tf.TensorSpec([], tf.uint32), tf.TensorSpec([], tf.int32)


def packed_size(count: int) -> int:
    """Return the bytes of a moment of ``count`` numbers."""
    return count + SCALE_BYTES * -(-count // BLOCK)


def pack(values: Tensor, squares: bool, key: int, step: Tensor) -> Tensor:
    """Return the bytes of float32 moments, uint8 of shape (``packed_size``,).

    Args:
        values: of one parameter.
        squares: they are averages of squares, whose square roots are kept.
        key: from ``state_rounding.moment_key``.
        step: from ``bfloat16_rounding.step_key``.
    """
    found: Tensor = (_pack_squares if squares else _pack)(values, uint32(key), step)
    found.set_shape([packed_size(math.prod(values.shape))])
    return found


def unpack(kept: Tensor, squares: bool, shape: tf.TensorShape) -> Tensor:
    """Return the float32 moments of a shape that :func:`pack` kept; zeros where all bytes are."""
    values = tf.reshape(_unpack(tf.convert_to_tensor(kept), tf.constant(math.prod(shape), tf.int32)), shape)
    return values * values if squares else values


def _codes_and_scales(values: Tensor, key: Tensor, step: Tensor, squares: bool) -> Tensor:
    size = tf.size(values)
    blocks = tf.reshape(tf.pad(tf.reshape(values, [-1]), [[0, tf.math.floormod(-size, BLOCK)]]), [-1, BLOCK])
    finite = tf.math.is_finite(blocks)
    sizes = tf.where(finite, tf.abs(blocks), tf.zeros_like(blocks))
    roots = tf.sqrt(sizes) if squares else sizes
    lowest = state_rounding.SMALLEST_EXPONENTS[squares]
    exponents = _exponent(tf.reduce_max(roots, axis=1)) - state_rounding.TOP_EXPONENT
    scales = _power(tf.maximum(exponents, lowest))
    inverse = tf.math.reciprocal(scales)[:, None]
    scaled = roots * inverse
    exponent = tf.maximum(_exponent(scaled), -6)
    spacing = _power(exponent - 3)
    count = tf.floor(scaled / spacing)
    low = count * spacing
    chance = tf.cast(tf.reshape(noise(tf.size(blocks, tf.int64), key, step), tf.shape(blocks)), tf.float32)
    if squares:
        square = blocks * inverse * inverse
        up = chance * ((low + spacing) ** 2 - low**2) < 65536 * (square - low**2)
        up |= tf.equal(count, 0) & (tf.bitcast(blocks, tf.int32) > 0)  # subnormal numbers too
    else:
        up = chance < 65536 * ((scaled - low) / spacing)
    codes = (exponent + 6) * 8 + tf.cast(count, tf.int32) + tf.cast(up, tf.int32)
    codes = tf.where((blocks < 0) & (codes > 0), codes + 128, codes)
    codes = tf.where(finite, codes, tf.fill(tf.shape(codes), state_rounding.NOT_A_NUMBER))
    shifts = tf.constant([8 * place for place in range(SCALE_BYTES)], tf.uint32)
    parts = bits_and(shifted_right(tf.bitcast(scales, tf.uint32)[:, None], shifts), uint32(0xFF))
    return tf.concat([tf.cast(tf.reshape(codes, [-1])[:size], tf.uint8), tf.cast(tf.reshape(parts, [-1]), tf.uint8)], 0)


@traced(_FLOATS, _KEY, _KEY)
def _pack(values: Tensor, key: Tensor, step: Tensor) -> Tensor:
    return _codes_and_scales(values, key, step, squares=False)


@traced(_FLOATS, _KEY, _KEY)
def _pack_squares(values: Tensor, key: Tensor, step: Tensor) -> Tensor:
    return _codes_and_scales(values, key, step, squares=True)


@traced(_BYTES, _SIZE)
def _unpack(kept: Tensor, size: Tensor) -> Tensor:
    parts = tf.cast(tf.reshape(kept[size:], [-1, SCALE_BYTES]), tf.uint32)
    bits = uint32(0)
    for place in range(SCALE_BYTES):
        bits = tf.bitwise.bitwise_or(bits, shifted_left(parts[:, place], uint32(8 * place)))
    codes = tf.reshape(tf.pad(tf.cast(kept[:size], tf.int32), [[0, tf.math.floormod(-size, BLOCK)]]), [-1, BLOCK])
    exponent, mantissa = bits_and(shifted_right(codes, 3), 15), bits_and(codes, 7)
    normal = tf.cast(mantissa + 8, tf.float32) * _power(exponent - 10)
    numbers = tf.where(tf.equal(exponent, 0), tf.cast(mantissa, tf.float32) * 2.0**-9, normal)
    numbers = tf.where(tf.equal(bits_and(codes, 0x7F), state_rounding.NOT_A_NUMBER), math.nan, numbers)
    values = tf.where(codes > 0x7F, -numbers, numbers) * tf.bitcast(bits, tf.float32)[:, None]
    return tf.reshape(values, [-1])[:size]


def _exponent(values: Tensor) -> Tensor:
    """Return the exponents of float32 numbers that are 0 or more, int32."""
    return tf.cast(shifted_right(tf.bitcast(values, tf.uint32), uint32(23)), tf.int32) - 127


def _power(exponent: Tensor) -> Tensor:
    """Return 2 to the power of int32 exponents of normal numbers."""
    return tf.bitcast(shifted_left(exponent + 127, 23), tf.float32)
