"""Whether a compiled step is being traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..precision.tapes import Tapes
from .native_steps import NativeSteps


class StepTracing:
    """The compiled steps of one session that are being traced.

    Args:
        tapes: the session's; what a trace recorded is dropped at its end.
        native_steps: the steps of a trace are reported after each run, from outside.

    Attributes:
        depth: how many compiled steps, nested, are being traced.
    """

    def __init__(self, tapes: Tapes, native_steps: NativeSteps) -> None:
        self._tapes, self._native_steps = tapes, native_steps
        self.depth = 0

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Trace a compiled step inside."""
        self.depth += 1
        try:
            with self._native_steps.following():
                yield
        finally:
            self.depth -= 1
            self._tapes.drop()
