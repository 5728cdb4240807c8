"""Counting the values of one tensor by the upper bits of their magnitudes, on its device."""

from __future__ import annotations

import torch

from unifiedamp.backend import forecast

from ..device.kinds import traits
from ..training.gradients import dense
from .reductions import flat

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
            for piece in [values] if values.numel() <= TOGETHER else torch.split(values, TOGETHER):
                self._add(*_counted(piece))

    def _add(self, counts: torch.Tensor, largest: torch.Tensor) -> None:
        if self.counts is None or self.largest is None:
            self.counts, self.largest = counts, largest
        else:
            self.counts, self.largest = self.counts + counts, torch.maximum(self.largest, largest)  # keeps nan


def _counted(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return counts of the upper bits, and the largest magnitude, which has the largest bits: nan's, then inf's."""
    bits = values.float().view(torch.int32) & 0x7FFFFFFF
    places, largest = bits >> forecast.SHIFT, bits.amax().view(torch.float32)
    if not traits(values.device).bincount_waits:
        return torch.bincount(places, minlength=forecast.PLACES), largest
    return torch.histc(places, forecast.PLACES, 0, forecast.PLACES).long(), largest
