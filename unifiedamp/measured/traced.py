"""A compiled step that also returns the losses that it scaled: no Python runs in a replay that could note them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backend import WrappedStep

Trace = list[tuple[int, Any]]
"""Index of an optimizer and a loss, of each loss in one call."""


class TracedStep(WrappedStep):
    """A step under a measured run.

    Args:
        step: the user's.
        traces: those under way; losses go to the last one.

    Attributes:
        step: see the argument.
    """

    def __init__(self, step: Callable[..., Any], traces: list[Trace]) -> None:
        functools.update_wrapper(self, step, updated=())
        self.step, self._traces = step, traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; return what it returned, and its losses by the index of their optimizer, as text."""
        return self.around(self.step)(*args, **kwargs)

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same around another form of the step."""

        @functools.wraps(step, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            trace: Trace = []
            self._traces.append(trace)
            try:
                found = step(*args, **kwargs)
            finally:
                self._traces.pop()
            # Keys are part of an output's structure, which a replay keeps; numbers would become tensors.
            return found, {str(key): [loss for index, loss in trace if index == key] for key, _ in trace}

        return call
