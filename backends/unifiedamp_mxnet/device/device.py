"""``MXNetDevice``: one context; arrays in and out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unifiedamp.backend import Device

from .._types import Array, Context, HostArray
from . import arrays, memory, prefetch
from .numpy_semantics import in_numpy_semantics


class MXNetDevice(Device):
    """The session's context. The loss scale lies on the host, so reading it never waits.

    Args:
        context: the session's context.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.name = str(context)

    @in_numpy_semantics
    def to_native(self, array: object, dtype: str | None = None) -> Array:
        return arrays.to_native(array, self.context, dtype)

    @in_numpy_semantics
    def to_numpy(self, tensor: object) -> HostArray:
        return arrays.to_numpy(tensor)

    @in_numpy_semantics
    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        return prefetch.prefetch(batches, size, self.context)

    def out_of_memory(self, error: BaseException) -> bool:
        return memory.out_of_memory(error)
