"""Batches on the session's device ahead of the loop."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Prefetcher, convert_batch

from . import arrays
from .devices import Device


def ahead(batches: Iterable[Any], size: int, device: Device) -> Iterable[Any]:
    """Return ``batches`` on ``device``, ``size`` of them ready ahead; a dataset comes back as one."""
    if isinstance(batches, tf.data.Dataset):
        if device.is_cpu:
            return batches.prefetch(size)
        return batches.apply(tf.data.experimental.prefetch_to_device(device.tf_name, size))
    if isinstance(batches, tf.distribute.DistributedDataset):
        return batches  # tf.distribute prefetches to each replica by itself
    return Prefetcher(
        batches, size, functools.partial(convert_batch, to_native=functools.partial(_moved, device=device))
    )


def _moved(value: Any, device: Device) -> Any:
    with tf.device(device.tf_name):
        native = arrays.to_native(value.asnumpy() if hasattr(value, "asnumpy") else value, None)
        return native if device.is_cpu else tf.identity(native)
