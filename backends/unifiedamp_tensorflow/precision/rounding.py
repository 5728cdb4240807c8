"""Rounding float32 tensors to a format, by TensorFlow operations; bit-equal to ``unifiedamp.formats.round_to``.

Arithmetic on bits instead of casts: XLA may drop a cast to float16 or bfloat16 and back.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from unifiedamp.backend import FloatFormat

from .._types import Tensor

_SIGN, _MAGNITUDE, _FRACTION, _LEADING_BIT, _INFINITY = 2**31, 0x7FFFFFFF, 0x7FFFFF, 0x800000, 0x7F800000
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127

bits_and, shifted_left, shifted_right = tf.bitwise.bitwise_and, tf.bitwise.left_shift, tf.bitwise.right_shift


F = TypeVar("F", bound=Callable[..., Any])


def traced(*signature: tf.TensorSpec) -> Callable[[F], F]:
    """Return a decorator that traces a function once per process, for arguments of this ``signature``."""
    function: Callable[[F], F] = tf.function(input_signature=signature, autograph=False)
    return function


def uint32(value: int) -> Tensor:
    """Return a scalar."""
    return tf.constant(value, tf.uint32)


def round_to(values: Tensor, format: FloatFormat, saturate: bool = False) -> Tensor:
    """Return the nearest numbers of the format, ties to even, as float32.

    Args:
        values: float32, any shape.
        format: of the result's numbers.
        saturate: numbers beyond ``format.max``, inf included, become ``format.max``.
    """
    bits = tf.bitcast(values, tf.uint32)
    sign, magnitude = bits_and(bits, uint32(_SIGN)), bits_and(bits, uint32(_MAGNITUDE))
    dropped = _MANTISSA_BITS - format.mantissa_bits
    last = bits_and(shifted_right(magnitude, uint32(dropped)), uint32(1))
    rounded = shifted_right(magnitude + uint32(2 ** (dropped - 1) - 1) + last, uint32(dropped))
    rounded = shifted_left(rounded, uint32(dropped))
    if format.min_exponent > 1 - _EXPONENT_BIAS:
        rounded = tf.where(magnitude < uint32(_bits(format.min_normal)), _subnormal(magnitude, format), rounded)
    largest = _bits(format.max)
    beyond = largest if saturate else {"inf": _INFINITY, "nan": _bits(math.nan), "saturate": largest}[format.overflow]
    rounded = tf.where(rounded > uint32(largest), uint32(beyond), rounded)
    rounded = tf.where(magnitude > uint32(_INFINITY), uint32(_bits(math.nan)), rounded)
    return tf.bitcast(tf.bitwise.bitwise_or(rounded, sign), tf.float32)


def _subnormal(magnitude: Tensor, format: FloatFormat) -> Tensor:
    """Round to a multiple of the smallest number: how many of them is a shift of the fraction with its leading bit."""
    fraction = tf.bitwise.bitwise_or(bits_and(magnitude, uint32(_FRACTION)), uint32(_LEADING_BIT))
    lowest = _MANTISSA_BITS - format.mantissa_bits + format.min_exponent + _EXPONENT_BIAS
    exponent = tf.minimum(shifted_right(magnitude, uint32(_MANTISSA_BITS)), uint32(lowest - 1))
    shift = tf.minimum(uint32(lowest) - exponent, uint32(_MANTISSA_BITS + 2))
    half = shifted_left(tf.ones_like(shift), shift - uint32(1))
    last = bits_and(shifted_right(fraction, shift), uint32(1))
    count = shifted_right(fraction + half - uint32(1) + last, shift)
    return tf.bitcast(tf.cast(count, tf.float32) * format.min_subnormal, tf.uint32)


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def rounded(values: Tensor, format: FloatFormat) -> Tensor:
    """Return float32 of ``values`` rounded to the format, as is the gradient that arrives for it."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no annotations
    def run(wide: Tensor) -> Any:
        return round_to(wide, format), lambda gradient: rounded(gradient, format)

    return run(tf.cast(values, tf.float32))
