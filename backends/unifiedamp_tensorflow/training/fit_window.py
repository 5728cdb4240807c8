"""Accumulation windows in ``fit``: no Python runs there that could count micro-batches, so the device does."""

from __future__ import annotations

from collections.abc import Callable, Collection

import tensorflow as tf

from .._types import Gradient, Named, Variable
from .scaler import branch

MICRO_BATCHES = "micro_batches"


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

    def saved_variables(self) -> dict[str, Variable]:
        """Return name → variable of what a checkpoint needs in the middle of a window."""
        held = {f"accumulator_{index}": each for index, each in enumerate(self._accumulators.values())}
        return {MICRO_BATCHES: self._micro, **held}

    def is_open(self) -> bool:
        """Whether micro-batches wait for the rest of their window."""
        return int(self._micro.numpy()) > 0

    def loaded(self, names: Collection[str]) -> None:
        """Continue from variables of these names that were loaded; a window that was not saved is empty."""
        if MICRO_BATCHES not in names:
            self.restart()
        self.resume()

    def resume(self) -> None:
        """Count on, in Python, from the micro-batches that the device has counted."""
        self._counted = int(self._micro.numpy())

    def count(self, micro_batches: int) -> int:
        """Count micro-batches that have run, in Python; return how many windows ended with them."""
        ended, self._counted = divmod(self._counted + micro_batches, self._steps)
        return ended

    def add(self, present: dict[str, Gradient], end: Callable[[], None], added: Callable[[], None]) -> None:
        """Add a micro-batch's gradients, in place in ``present``; call ``added``, and ``end`` if the window is full."""
        micro = self._micro.read_value()
        for name, gradient in present.items():
            held = self._accumulators[name]
            value = tf.cast(tf.convert_to_tensor(gradient), held.dtype)
            present[name] = tf.where(tf.equal(micro, 0), value, held.read_value() + value)
            held.assign(present[name])
        added()
        full = tf.equal(micro + 1, self._steps)
        self._micro.assign(tf.where(full, tf.zeros_like(micro), micro + 1))
        if not tf.executing_eagerly():
            tf.cond(full, branch(end), branch(lambda: None))
        elif bool(full):
            end()
