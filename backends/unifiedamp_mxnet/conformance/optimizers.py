"""Parts of Trainers for the conformance suite: a schedule, and an updater that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._types import Array
from ..mxnet_api import mx


class Listed(mx.lr_scheduler.LRScheduler):  # type: ignore[misc]  # MXNet has no type hints
    """A learning rate for each update, which MXNet counts before it asks; the last stays."""

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__(base_lr=rates[0])
        self.rates = rates

    def __call__(self, num_update: int) -> float:
        """Return the rate of the update with this number, from 1."""
        return self.rates[min(num_update, len(self.rates)) - 1]


class BrokenUpdater:
    """An updater that updates the first parameter it is given, and then raises.

    Args:
        updater: the Trainer's, whose states it has.
        error: what is raised.
    """

    def __init__(self, updater: Any, error: BaseException) -> None:
        self._updater, self._error = updater, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._updater, name)

    def __call__(self, places: Sequence[int], gradients: Sequence[Array], weights: Sequence[Array]) -> None:
        """Update the first one."""
        self._updater(places[:1], gradients[:1], weights[:1])
        raise self._error
