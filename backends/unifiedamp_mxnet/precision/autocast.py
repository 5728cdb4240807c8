"""Regions: a policy in force on this thread, with gradients recorded (autocast) or not (inference)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..device.numpy_semantics import numpy_semantics
from ..mxnet_api import autograd
from . import dispatch
from .casts import CastTable, ThreadState, current

P = ParamSpec("P")
R = TypeVar("R")


class Region:
    """Runs operators under a table; reusable, nestable, thread-local.

    Args:
        table: the rules; None runs operators unchanged.
        infer: record no gradients and run layers in evaluation mode; otherwise both are on, except inside a region
            that infers.
    """

    __slots__ = ("_infer", "_table")

    def __init__(self, table: CastTable | None, infer: bool = False) -> None:
        self._infer = infer
        self.become(table)

    def become(self, table: CastTable | None) -> None:
        """Run operators under another table, from the next time that the region is entered."""
        self._table = table if table is not None and table.casts else None

    def __enter__(self) -> Region:
        opened = OpenRegion(current)
        try:
            current.stack.append(opened)
            self._open(current, opened)
        except BaseException:
            opened.close(current)
            raise
        return self

    def _open(self, state: ThreadState, opened: OpenRegion) -> None:
        if self._table is not None:
            dispatch.install(opened)
        opened.semantics.__enter__()
        train = not (self._infer or state.inferring)
        autograd.set_recording(train)
        autograd.set_training(train)
        state.table = self._table
        state.inferring = not train

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = current.stack[-1]
        try:
            opened.close(current)
        except BaseException:  # a signal's: what it left is closed as well
            opened.close(current)
            raise


class OpenRegion:
    """The state to restore when a region is left.

    Args:
        state: the thread's.
    """

    def __init__(self, state: ThreadState) -> None:
        self._before = (state.table, state.inferring)
        self._flags = (autograd.is_recording(), autograd.is_training())
        self._depth = len(state.stack)
        self.semantics = numpy_semantics()

    def close(self, state: ThreadState) -> None:
        """Restore what was in force. Idempotent."""
        state.table, state.inferring = self._before
        recording, training = self._flags
        autograd.set_recording(recording)
        autograd.set_training(training)
        self.semantics.__exit__(None, None, None)
        dispatch.uninstall(self)
        del state.stack[self._depth :]


def outside_regions(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function as outside all regions: nothing is cast or recorded. For work on gradients."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with numpy_semantics(), Suspended(), autograd.pause():
            return function(*args, **kwargs)

    return run


class Suspended:
    """Suspends casts; gradients are recorded or not as before. For custom functions."""

    def __enter__(self) -> None:
        self._table: CastTable | None = current.table
        current.table = None

    def __exit__(self, *_: object) -> None:
        current.table = self._table
