"""``amp.scope()``: native objects are created on the session's device."""

from __future__ import annotations

from types import TracebackType

from .._types import Context
from ..device.numpy_semantics import numpy_semantics


class Scope:
    """MXNet keeps a current context per thread; inside, it is the session's, with MXNet 2's numpy semantics on.

    Parameters are float32 in any case.

    Args:
        context: the session's context.
    """

    def __init__(self, context: Context) -> None:
        self._context: Context = type(context)(context.device_type, context.device_id)  # type: ignore[call-arg]  # as MXNet's does
        self._semantics = numpy_semantics()

    def __enter__(self) -> None:
        self._semantics.__enter__()
        self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)
        self._semantics.__exit__(None, None, None)
