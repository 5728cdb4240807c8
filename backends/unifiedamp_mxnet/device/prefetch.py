"""Batches on the session's context ahead of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from unifiedamp.backend import Prefetcher, convert_batch

from .._types import Array, Context
from ..mxnet_api import context_of, mx
from .arrays import to_native


def prefetch(batches: Iterable[Any], size: int, context: Context) -> Prefetcher:
    """Return ``batches`` on ``context``, ``size`` of them ready ahead, as arrays of the kind in use here."""
    as_numpy, as_shape = mx.util.is_np_array(), mx.util.is_np_shape()

    def moved(value: object) -> Array:
        native = to_native(value, context)
        # Classic arrays alone: those of MXNet 1's numpy have another name for their context, and warn of this one.
        here = context_of(native.as_nd_ndarray())
        return native if here == context else native.copyto(context)

    def around(work: Callable[[], None]) -> None:
        # MXNet's numpy semantics belong to a thread.
        with mx.util.np_shape(as_shape), mx.util.np_array(as_numpy):
            work()

    return Prefetcher(batches, size, lambda batch: convert_batch(batch, moved), around=around)
