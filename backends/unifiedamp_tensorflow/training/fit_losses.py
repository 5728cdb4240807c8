"""The loss of each step of ``fit``, from the mean over the epoch so far, which is what Keras returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._types import Tensor


class FitLosses:
    """Follows the mean loss of one model."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a new mean."""
        self._steps, self._mean = 0, None

    def add(self, logs: Any, count: int) -> Callable[[], float] | None:
        """Return a function that reads the loss of the last ``count`` steps; None where Keras returned no loss.

        Reading is left for later: it waits for the device.
        """
        mean = logs.get("loss") if isinstance(logs, Mapping) else None
        if mean is None:
            return None
        before, steps = self._mean, self._steps
        self._mean, self._steps = mean, steps + count
        return functools.partial(_between, before, steps, mean, steps + count)


def _between(before: Tensor | None, steps: int, mean: Tensor, more: int) -> float:
    """Return the mean over the steps from ``steps`` to ``more``, from those from the beginning."""
    earlier = 0.0 if before is None else float(before) * steps
    return (float(mean) * more - earlier) / (more - steps)
