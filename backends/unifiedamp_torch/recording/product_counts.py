"""Counting the values of tensors by the upper bits of their magnitudes, on their device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from unifiedamp.backend import forecast

from ..device.kinds import traits
from ..training.gradients import dense
from .reductions import flat

TOGETHER = 2**24
"""Values that are counted at a time: what counting takes in memory, and what a float32 count holds exactly."""
SMALL = 2**14
"""Values of a tensor in the host's memory that is copied and counted with others: calling operators for it alone would
take longer than their work."""
HELD = 2**20
"""Values of such copies, at most."""


class DeviceCounts:
    """The values of one tensor, or of several that are added up; see ``forecast.TensorCounts``.

    Attributes:
        counts: ``forecast.PLACES`` numbers.
        largest: without dimensions.
    """

    def __init__(self) -> None:
        self.counts: torch.Tensor | None = None
        self.largest: torch.Tensor | None = None

    def add(self, counts: torch.Tensor, largest: torch.Tensor) -> None:
        """Add what was counted of some values."""
        if self.counts is None or self.largest is None:
            self.counts, self.largest = counts, largest
        else:
            self.counts, self.largest = self.counts + counts, torch.maximum(self.largest, largest)  # keeps nan


class StepValues:
    """Counts the values of one step's tensors; waits for nothing."""

    def __init__(self) -> None:
        self._held: list[tuple[DeviceCounts, torch.Tensor]] = []
        self._size = 0

    def add(self, counts: DeviceCounts, tensor: torch.Tensor, inverse: torch.Tensor | None) -> None:
        """Add a tensor's values, times ``inverse`` if it is given, to ``counts``: now, or in :meth:`count`."""
        with torch.no_grad():
            values = flat(dense(tensor.detach()))
            if inverse is not None:
                values = values.float() * inverse.to(values.device)
            if values.numel() > SMALL or not traits(values.device).reads_without_sync:
                for piece in [values] if values.numel() <= TOGETHER else torch.split(values, TOGETHER):
                    counts.add(*_counted(piece))
                return
            kept = values.clone() if inverse is None else values  # the tensor may change before it is counted
            self._held.append((counts, kept.float()))
            self._size += values.numel()
            if self._size > HELD:
                self.count()

    def count(self) -> None:
        """Count what is held."""
        held, self._held, self._size = self._held, [], 0
        if held:
            for (counts, _), found in zip(held, _counted_together([values for _, values in held]), strict=True):
                counts.add(*found)


def _counted(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return counts of the upper bits, and the largest magnitude, which has the largest bits: nan's, then inf's."""
    bits = _magnitudes(values)
    places, largest = bits >> forecast.SHIFT, bits.amax().view(torch.float32)
    if not traits(values.device).bincount_waits:
        return torch.bincount(places, minlength=forecast.PLACES), largest
    return torch.histc(places, forecast.PLACES, 0, forecast.PLACES).long(), largest


def _counted_together(tensors: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return the same of several tensors in the host's memory."""
    bits, ends = _magnitudes(torch.cat(tensors)).numpy(), np.cumsum([values.numel() for values in tensors])
    places, starts = bits >> forecast.SHIFT, [0, *ends[:-1]]
    counts = [np.bincount(places[a:b], minlength=forecast.PLACES) for a, b in zip(starts, ends, strict=True)]
    largest = torch.from_numpy(np.maximum.reduceat(bits, starts).view(np.float32))
    return zip(map(torch.from_numpy, counts), largest, strict=True)


def _magnitudes(values: torch.Tensor) -> torch.Tensor:
    return values.float().view(torch.int32) & 0x7FFFFFFF
