"""The records of one step as plain values: of all replicas together, and of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import recording
from unifiedamp.backend.sketch import Sketch

from .trace_record import LayerRecord, TraceRecord


class ReadRecord:
    """One record whose numbers were read.

    Args:
        record: the record.
        values: its tensors, as arrays.
        compare: sketches were recorded.

    Attributes:
        names: of its gradients, and whose they are.
        scalars: see :class:`TraceRecord`.
    """

    def __init__(self, record: TraceRecord, values: Mapping[str, Any], compare: bool) -> None:
        self.names, self.compare = record.names, compare
        self.scalars = {name: float(values[name]) for name in record.scalars}
        self._seen, self._largest = record.activations, values.get("largest", ())
        self._counts = values.get("counts", ())
        scale = self.scalars.get("scale", 1.0)
        self._layers = record.layers.read(values)
        self._sketches = record.gradients.read(values, scale)
        names, sums = record.summed
        self.sums = dict(zip(names, sums.read(values, scale), strict=True))

    def _activation(self, seen: LayerRecord) -> recording.Activation:
        return recording.Activation(*seen[:4], float(self._largest[seen.which]), seen.function)

    def activations(self) -> list[recording.Activation]:
        """Return the activations; of the same call of a layer on several replicas, the largest value."""
        calls: Counter[tuple[object, ...]] = Counter()
        found: dict[tuple[object, ...], recording.Activation] = {}
        for seen in self._seen:
            row = self._activation(seen)
            place = (*seen[:4], calls[*seen[:4], seen.replica])
            calls[*seen[:4], seen.replica] += 1
            if place not in found or row.largest > found[place].largest or math.isnan(row.largest):
                found[place] = row
        return list(found.values())

    def activations_of(self, replica: int) -> list[recording.Activation]:
        """Return the activations of one replica."""
        return [self._activation(seen) for seen in self._seen if seen.replica == replica]

    def layer_sketches(self, replica: int) -> list[Sketch]:
        """Return sketches of :meth:`activations_of`."""
        return [self._layers[seen.which] for seen in self._seen if seen.replica == replica and self.compare]

    def gradient_sketches(self, replica: int) -> dict[str, Sketch]:
        """Return the sketches of one replica's gradients before the sum."""
        pairs = zip(self.names, self._sketches, strict=True) if self.compare else ()
        return {name: each for (name, own), each in pairs if own == replica}

    def gradients(self) -> dict[str, recording.GradientCounts]:
        """Return the counts by name, those of all replicas together."""
        sums: dict[str, dict[int, Any]] = {}
        for (name, replica), both in zip(self.names, self._counts, strict=True):
            sums.setdefault(name, {})[replica] = both
        totals = {name: sum(each.values()) for name, each in sums.items()}
        return {
            name: recording.GradientCounts(scaled.tolist(), true.tolist()) for name, (scaled, true) in totals.items()
        }

    def finite(self, replica: int) -> dict[str, bool]:
        """Return whether each gradient of one replica was finite."""
        pairs = zip(self.names, self._counts, strict=True)
        return {name: not both[0][-2:].any() for (name, own), both in pairs if own == replica}  # inf and nan


def merged(records: Sequence[ReadRecord], weights: Mapping[str, Any], first_rank: int | None) -> recording.RecordedStep:
    """Return what the records of one step say, those of micro-batches in their order.

    Args:
        records: of the step.
        weights: when a traced step began.
        first_rank: see :class:`StepRecorder`.
    """
    scalars: dict[str, float] = {}
    gradients: dict[str, recording.GradientCounts] = {}
    for record in records:
        scalars |= record.scalars
        gradients |= record.gradients()
    losses = [value for name, value in scalars.items() if name != "scale"]
    replicas = sorted({replica for record in records for _, replica in record.names})
    local = [] if first_rank is None else [_local(records, replica, first_rank, scalars) for replica in replicas]
    return recording.RecordedStep(
        scalars.get("scale", 1.0),
        sum(losses) if losses else None,
        gradients,
        [each for record in records for each in record.activations()],
        local,
        unreduced=bool(local),
        sketches=_sketches(records, bool(local)) if records[-1].compare else None,
        weights=weights,
    )


def _sketches(records: Sequence[ReadRecord], replicas: bool) -> recording.StepSketches:
    if replicas:
        return recording.StepSketches((), {name: each for record in records for name, each in record.sums.items()})
    return _own_sketches(records, 0)


def _own_sketches(records: Sequence[ReadRecord], replica: int) -> recording.StepSketches:
    layers = [each for record in records for each in record.layer_sketches(replica)]
    gradients = {name: each for record in records for name, each in record.gradient_sketches(replica).items()}
    return recording.StepSketches(layers, gradients)


def _local(
    records: Sequence[ReadRecord], replica: int, first_rank: int, scalars: Mapping[str, float]
) -> recording.LocalStep:
    """Return what one of several replicas computed; its gradients before the sum."""
    activations = [each for record in records for each in record.activations_of(replica)]
    finite = {name: each for record in records for name, each in record.finite(replica).items()}
    sketches = _own_sketches(records, replica) if records[-1].compare else None
    return recording.LocalStep(first_rank + replica, activations, finite, scalars.get(f"loss{replica}"), sketches)
