"""Rounding float32 tensors to bfloat16: stochastically, and with a compensation. As ``unifiedamp.backend.rounding``,
bit for bit. All results are float32 tensors whose values bfloat16 holds, so that a cast to it is exact.
"""

from __future__ import annotations

import math

import tensorflow as tf

from unifiedamp.backend import FLOAT_FORMATS, rounding

from .._types import Tensor
from ..precision.rounding import bits_and, round_to, shifted_right, uint32

_KEPT_BITS = 0xFFFF0000


def stochastic(values: Tensor, param: int, step: Tensor) -> Tensor:
    """Return float32 values rounded up or down, each with a probability in proportion to the distance.

    Args:
        values: float32, of a known shape.
        param: from ``rounding.param_key``.
        step: from :func:`step_key`.
    """
    size = math.prod(values.shape.as_list())
    noisy = tf.bitcast(values, tf.uint32) + tf.reshape(noise(size, param, step), values.shape)
    kept = tf.bitcast(bits_and(noisy, uint32(_KEPT_BITS)), tf.float32)
    return tf.where(tf.math.is_nan(values), values, kept)  # type: ignore[no-any-return]  # without annotations


def step_key(seed: int, step: Tensor) -> Tensor:
    """Return ``rounding.step_key`` of an integer scalar, uint32."""
    return _fmix32(uint32(rounding.fmix32(seed)) + tf.cast(step, tf.uint32))


def noise(size: int, param: int, step: Tensor) -> Tensor:
    """Return ``rounding.noise``, a uint32 vector; ``step``: uint32 scalar."""
    places = tf.cast(tf.range(size, dtype=tf.int64), tf.uint32)
    mixed = _fmix32(_fmix32(places + uint32(param)) + step)
    return shifted_right(mixed, uint32(32 - rounding.NOISE_BITS))  # type: ignore[no-any-return]


def _fmix32(mixed: Tensor) -> Tensor:
    for shift, factor in rounding.FMIX:
        mixed = tf.bitwise.bitwise_xor(mixed, shifted_right(mixed, uint32(shift)))
        mixed = mixed if factor == 1 else mixed * uint32(factor)
    return mixed


def nearest(values: Tensor) -> Tensor:
    """Return float32 values rounded to the nearest, ties to even."""
    return round_to(values, FLOAT_FORMATS["bfloat16"])


def kahan_split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of float32 values, and the compensation of what it leaves out."""
    weight = nearest(values)
    total = weight + nearest(values - weight)
    finite = tf.math.is_finite(total)
    weight = tf.where(finite, nearest(total), weight)
    return weight, tf.where(finite, total - weight, tf.zeros_like(total))


def joined(weight: Tensor, rest: Tensor) -> Tensor:
    """Return float32 weight plus compensation, where they can be those of one value; else the weight.

    A weight that was assigned to since then has no compensation, or at most half a last place of it.
    """
    weight = tf.cast(weight, tf.float32)
    total = weight + tf.cast(rest, tf.float32)
    return tf.where(tf.equal(nearest(total), weight), total, weight)  # type: ignore[no-any-return]
