"""Keras 2's Nadam in graphs: it counts, in Python, the steps whose decay product it has computed.

A trace runs that Python once. Each later step then computes the product anew for every parameter, and the bias
corrections are wrong. Here the count is on the device.
"""

from __future__ import annotations

import tensorflow as tf

from .. import patches
from .._types import Optimizer, Tensor

COUNT = "_u_product_counter"


class DeviceCount:
    """The step whose product is known, in place of Nadam's Python number: Nadam compares it, and adds 1.

    Args:
        optimizer: a built Nadam of Keras 2.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._iterations = optimizer.iterations
        self._known = tf.Variable(-1, trainable=False, dtype=tf.int64, name="unifiedamp/nadam_step")

    def __eq__(self, step: object) -> Tensor:  # type: ignore[override]  # Nadam branches on it by tf.cond
        return tf.equal(self._known.read_value(), tf.cast(step, tf.int64))

    def __hash__(self) -> int:
        return id(self)

    def __iadd__(self, _one: int) -> DeviceCount:
        self._known.assign(tf.cast(self._iterations, tf.int64) + 2)
        return self

    def forget(self) -> None:
        """Note that no product of the step to come is known, whatever weights and state were loaded since."""
        self._known.assign(-1)


def count_on_device(optimizer: Optimizer) -> None:
    """Make a Nadam of Keras 2 count on the device; leaves other optimizers as they are. Idempotent."""
    if isinstance(getattr(optimizer, COUNT, None), int):
        patches.set_number(optimizer, COUNT, DeviceCount(optimizer))


def begin_step(optimizer: Optimizer) -> None:
    """Note that a step of the optimizer begins."""
    count = getattr(optimizer, COUNT, None)
    if isinstance(count, DeviceCount):
        count.forget()
