"""Rounding float32 tensors to bfloat16: stochastically, and with a compensation. As ``unifiedamp.backend.rounding``,
bit for bit, but for numbers below 2**-126, which TensorFlow's arithmetic takes for 0.

Arithmetic on bits instead of casts: XLA may drop a cast to bfloat16 and back. Each rounding is a ``tf.function``,
traced once per process, so that a parameter costs a step's graph one operation, and an eager step one call.
"""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import rounding

from .._types import Tensor
from ..precision.rounding import bits_and, shifted_right, traced, uint32

_KEPT_BITS = 0xFFFF0000
_FLOATS, _WEIGHTS = tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.bfloat16)
_KEY = tf.TensorSpec([], tf.uint32)


def stochastic(values: Tensor, param: int, step: Tensor) -> Tensor:
    """Return float32 values rounded up or down, each with a probability in proportion to the distance; bfloat16.

    Args:
        values: float32.
        param: from ``rounding.param_key``.
        step: from :func:`step_key`.
    """
    return _shaped(_stochastic(values, uint32(param), step), values)


def _shaped(result: Tensor, like: Tensor) -> Tensor:
    """Return the result of a function, whose shape graphs do not know."""
    result.set_shape(like.shape)
    return result


def step_key(seed: int, step: Tensor) -> Tensor:
    """Return ``rounding.step_key`` of an integer scalar, uint32."""
    return _fmix32(uint32(rounding.fmix32(seed)) + tf.cast(step, tf.uint32))


def noise(size: Tensor, param: Tensor, step: Tensor) -> Tensor:
    """Return ``rounding.noise``: whole numbers below ``2**NOISE_BITS``, uint32 of shape (size,)."""
    mixed = _fmix32(_fmix32(tf.cast(tf.range(size), tf.uint32) + param) + step)
    return shifted_right(mixed, uint32(32 - rounding.NOISE_BITS))


def kahan_split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of float32 values, and the compensation of what it leaves out; bfloat16."""
    weight, rest = _kahan_split(values)
    return _shaped(weight, values), _shaped(rest, values)


def joined(weight: Tensor, rest: Tensor) -> Tensor:
    """Return float32 weight plus compensation, where they can be those of one value; else the weight.

    A weight that was assigned to since then has no compensation, or at most half a last place of it.
    """
    return _shaped(_joined(tf.convert_to_tensor(weight), tf.convert_to_tensor(rest)), weight)


def nearest(values: Tensor) -> Tensor:
    """Return float32 values rounded to the nearest, ties to even; float32."""
    bits = tf.bitcast(values, tf.uint32)
    last = bits_and(shifted_right(bits, uint32(16)), uint32(1))
    kept = bits_and(bits + last + uint32(0x7FFF), uint32(_KEPT_BITS))
    return tf.where(tf.math.is_nan(values), values, tf.bitcast(kept, tf.float32))


@traced(_FLOATS, _KEY, _KEY)
def _stochastic(values: Tensor, param: Tensor, step: Tensor) -> Tensor:
    drawn = tf.reshape(noise(tf.size(values, tf.int64), param, step), tf.shape(values))
    kept = bits_and(tf.bitcast(values, tf.uint32) + drawn, uint32(_KEPT_BITS))
    return tf.cast(tf.where(tf.math.is_nan(values), values, tf.bitcast(kept, tf.float32)), tf.bfloat16)


def _fmix32(mixed: Tensor) -> Tensor:
    for shift, factor in rounding.FMIX:
        mixed = tf.bitwise.bitwise_xor(mixed, shifted_right(mixed, uint32(shift)))
        mixed = mixed if factor == 1 else mixed * uint32(factor)
    return mixed


@traced(_FLOATS)
def _kahan_split(values: Tensor) -> tuple[Tensor, Tensor]:
    weight = nearest(values)
    total = weight + nearest(values - weight)
    finite = tf.math.is_finite(total)
    weight = tf.where(finite, nearest(total), weight)
    rest = tf.where(finite, total - weight, tf.zeros_like(total))
    return tf.cast(weight, tf.bfloat16), tf.cast(rest, tf.bfloat16)


@traced(_WEIGHTS, _WEIGHTS)
def _joined(weight: Tensor, rest: Tensor) -> Tensor:
    weight = tf.cast(weight, tf.float32)
    total = weight + tf.cast(rest, tf.float32)
    return tf.where(tf.equal(nearest(total), weight), total, weight)
