"""The session's device: arrays in and out, prefetch, memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import Device, prefetch_in_thread

from .._types import Tensor
from . import arrays, memory
from .selection import DeviceInfo


class TensorFlowDevice(Device):
    """The device of one session.

    Args:
        info: which device.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info
        self.name = info.name
        self.reads_without_sync = info.is_cpu

    def expect_compiled_steps(self) -> None:
        """From here on, reading the loss scale may wait for a compiled step."""
        self.reads_without_sync = False

    def to_native(self, array: Any, dtype: str | None = None) -> Tensor:
        with tf.device(self._info.tf_name):
            return arrays.to_native(array, dtype)

    def to_numpy(self, tensor: Tensor) -> Any:
        # numpy cannot read a bfloat16 scalar of TensorFlow's.
        return np.asarray(tf.cast(tensor, tf.float32) if getattr(tensor, "dtype", None) == "bfloat16" else tensor)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """Prefetch by ``tf.data`` where the batches are a dataset, which comes back as one; else in a thread."""
        if isinstance(batches, tf.data.Dataset):
            if self._info.is_cpu:
                return batches.prefetch(size)
            return batches.apply(tf.data.experimental.prefetch_to_device(self._info.tf_name, size))
        if isinstance(batches, tf.distribute.DistributedDataset):
            return batches  # tf.distribute prefetches to each replica by itself
        return prefetch_in_thread(batches, size, self._moved)

    def _moved(self, value: Any) -> Tensor:
        native = self.to_native(value)
        if self._info.is_cpu:
            return native
        with tf.device(self._info.tf_name):
            return tf.identity(native)

    def peak_memory(self) -> int | None:
        return memory.peak_memory(self._info)

    def out_of_memory(self, error: BaseException) -> bool:
        return memory.out_of_memory(error)
