"""Accumulation windows in ``fit``: no Python runs there that could count micro-batches, so the device does."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from .._types import Gradient, Named
from .scaler import branch


class FitWindow:
    """One optimizer's window.

    Args:
        accumulators: name → variable; the user's loops use the same.
        steps: micro-batches per window.
    """

    def __init__(self, accumulators: Named, steps: int) -> None:
        self._accumulators, self._steps = accumulators, steps
        self._micro = tf.Variable(0, trainable=False, dtype=tf.int64, name="unifiedamp/micro_batches")
        self._counted = 0

    def restart(self) -> None:
        """Drop the window; the first gradients of the next one replace what accumulators hold."""
        self._micro.assign(0)
        self._counted = 0

    def count(self, micro_batches: int) -> int:
        """Count micro-batches that have run, in Python; return how many windows ended with them."""
        ended, self._counted = divmod(self._counted + micro_batches, self._steps)
        return ended

    def add(self, present: dict[str, Gradient], end: Callable[[], None], added: Callable[[], None]) -> None:
        """Add a micro-batch's gradients, in place in ``present``; call ``added``, and ``end`` if the window is full."""
        micro = self._micro.read_value()
        for name, gradient in present.items():
            held, value = self._accumulators[name], tf.convert_to_tensor(gradient)
            present[name] = tf.where(tf.equal(micro, 0), value, held.read_value() + value)
            held.assign(present[name])
        added()
        full = tf.equal(micro + 1, self._steps)
        self._micro.assign(tf.where(full, tf.zeros_like(micro), micro + 1))
        if not tf.executing_eagerly():
            tf.cond(full, branch(end), branch(lambda: None))
        elif bool(full):
            end()
