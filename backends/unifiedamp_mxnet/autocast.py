"""Regions: a policy in force on this thread, with gradients recorded (``Autocast``) or not (``Inference``)."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .casts import Table, current
from .dispatch import installed
from .native import autograd
from .semantics import numpy_semantics


class Region:
    """Operators inside run under a table; reusable, nestable, and each thread is in its own.

    Args:
        table: the rules; None runs operators as they are.
        infer: record no gradients and run layers in evaluation mode; otherwise both are on, except inside a region
            that infers.
    """

    __slots__ = ("_infer", "_table")

    def __init__(self, table: Table | None, infer: bool = False) -> None:
        self._table = table if table is not None and table.casts else None
        self._infer = infer

    def __enter__(self) -> Region:
        state = current
        table = self._table
        if table is not None:
            installed.enter()
        train = not (self._infer or state.inferring)
        semantics = numpy_semantics()
        semantics.__enter__()
        flags = (autograd.set_recording(train), autograd.set_training(train))
        state.stack.append((state.table, state.inferring, flags, semantics))
        state.table = table
        state.inferring = not train
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = current
        state.table, state.inferring, (recording, training), semantics = state.stack.pop()
        autograd.set_recording(recording)
        autograd.set_training(training)
        semantics.__exit__(None, None, None)
        if self._table is not None:
            installed.leave()


class Suspended:
    """Operators inside run as they are; gradients are recorded or not as before. For custom functions."""

    def __enter__(self) -> None:
        self._table: Any = current.table
        current.table = None

    def __exit__(self, *_: object) -> None:
        current.table = self._table
