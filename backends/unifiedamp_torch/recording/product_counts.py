"""Counting the values of one tensor by the upper bits of their magnitudes, on its device."""

from __future__ import annotations

import torch

from unifiedamp.backend import forecast

from ..device.kinds import traits
from ..training.gradients import dense
from .reductions import flat, largest

TOGETHER = 2**24
"""Values that are counted at a time: what counting takes in memory, and what a float32 count holds exactly."""


class DeviceCounts:
    """The values of one tensor, or of several that are added up; see ``forecast.TensorCounts``.

    Attributes:
        counts: ``forecast.PLACES`` numbers.
        largest: without dimensions.
    """

    def __init__(self) -> None:
        self.counts: torch.Tensor | None = None
        self.largest: torch.Tensor | None = None

    def add(self, tensor: torch.Tensor, inverse: torch.Tensor | None) -> None:
        """Add a tensor's values, times ``inverse`` if it is given; waits for nothing."""
        with torch.no_grad():
            values = flat(dense(tensor.detach()))
            if inverse is not None:
                values = values.float() * inverse.to(values.device)
            for piece in values.split(TOGETHER):  # type: ignore[no-untyped-call]  # torch leaves it untyped
                found = _counted(piece)
                self.counts = found if self.counts is None else self.counts + found
            high = largest(values).float()
            self.largest = high if self.largest is None else torch.maximum(self.largest, high)  # keeps nan


def _counted(values: torch.Tensor) -> torch.Tensor:
    places = (values.float().view(torch.int32) & 0x7FFFFFFF) >> forecast.SHIFT
    if not traits(values.device).bincount_waits:
        return torch.bincount(places, minlength=forecast.PLACES)
    return torch.histc(places, forecast.PLACES, 0, forecast.PLACES).long()
