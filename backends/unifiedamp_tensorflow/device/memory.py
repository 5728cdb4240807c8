"""Peak memory, and the errors that mean that memory ran out."""

from __future__ import annotations

import tensorflow as tf

from .selection import DeviceInfo


def peak_memory(device: DeviceInfo) -> int | None:
    """Return the most bytes that TensorFlow's GPU allocator has handed out; None on the CPU.

    TensorFlow counts them since the process began, or since ``tf.config.experimental.reset_memory_stats``.
    """
    if device.is_cpu:
        return None
    return int(tf.config.experimental.get_memory_info(device.tf_name.strip("/"))["peak"])


def out_of_memory(error: BaseException) -> bool:
    """Return whether TensorFlow, or XLA under it, ran out of memory.

    XLA's error is of a private class, known by its text.
    """
    return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)) or "RESOURCE_EXHAUSTED" in str(error)
