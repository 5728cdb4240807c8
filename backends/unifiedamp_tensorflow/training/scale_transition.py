"""Updating the loss scale in a graph, equal to ``LossScale.next_state``: the operations of each of its two cases."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from unifiedamp.backend import LossScale, float32

from .._types import Tensor


class Updated(NamedTuple):
    """The numbers after an iteration.

    Attributes:
        scale: float32 scalar.
        run: int64 scalar: ``good_steps`` after finite gradients, ``bad_steps`` after others; the other one is 0.
        spent: int64 scalar, ``hysteresis_steps``; None where the settings do not keep it.
        changes: bool scalar: whether the scale grows, or backs off.
    """

    scale: Tensor
    run: Tensor
    spent: Tensor | None
    changes: Tensor


def after_finite(settings: LossScale, scale: Tensor, good: Tensor, spent: Tensor | None) -> Updated:
    """Return the numbers after an iteration whose gradients are finite.

    Args:
        settings: the loss scale in force.
        scale: float32 scalar.
        good: ``good_steps`` before it, int64 scalar.
        spent: ``hysteresis_steps`` before it, int64 scalar; None where the settings do not keep it.
    """
    good = good + 1
    grows = good >= settings.growth_interval
    larger = tf.minimum(float32(settings.scale_bounds[1]), _times(scale, settings.growth_factor))
    left = None if spent is None else tf.where(grows, tf.zeros_like(spent), spent)
    return Updated(tf.where(grows, larger, scale), tf.where(grows, tf.zeros_like(good), good), left, grows)


def after_nonfinite(settings: LossScale, scale: Tensor, bad: Tensor, spent: Tensor | None) -> Updated:
    """Return the numbers after an iteration with inf or nan; see :func:`after_finite`, ``bad`` is ``bad_steps``."""
    bad = bad + 1
    spent = None if spent is None else tf.minimum(spent + 1, settings.hysteresis)
    backs_off = (bad if spent is None else spent) >= settings.hysteresis
    smaller = tf.maximum(float32(settings.scale_bounds[0]), _times(scale, settings.backoff_factor))
    return Updated(tf.where(backs_off, smaller, scale), bad, spent, backs_off)


def selected(condition: Tensor, yes: Updated, no: Updated) -> Updated:
    """Return the numbers of ``yes`` where ``condition``, a bool scalar, holds, else those of ``no``."""
    spent = None if yes.spent is None else tf.where(condition, yes.spent, no.spent)
    return Updated(
        tf.where(condition, yes.scale, no.scale), tf.where(condition, yes.run, no.run), spent,
        tf.where(condition, yes.changes, no.changes),
    )  # fmt: skip


def _times(scale: Tensor, factor: float) -> Tensor:
    """Return the product rounded once, as the reference does; past float32 it is inf."""
    return tf.cast(tf.cast(scale, tf.float64) * factor, tf.float32)
