"""What is noted of a recorded step, and how it becomes one vector, which a CUDA graph can fill at each replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from unifiedamp.backend import recording
from unifiedamp.backend.sketch import Sketch

from ..device.kinds import traits
from .sketches import TensorSketch
from .states import NUMBERS, StepStates, read


class LayerRecord(NamedTuple):
    """One activation before it is read."""

    layer: str
    kind: str
    place: str
    dtype: str
    largest: torch.Tensor
    sketch: TensorSketch | None


@dataclass
class Notes:
    """What was noted of a step, or of one call of a captured step, in tensors on their devices.

    Attributes:
        activations: in the order in which layers ran.
        names: of the gradients that were counted.
        scaled, true: vectors of counts of consecutive gradients; the same tensors without a loss scale.
        scalars: "scale" and "loss", where there are any.
        sketches: gradient name → its sketch.
        local, local_sketches: the largest value and the sketch of this rank's own gradients, by name.
        sharded: gradients are shards.
        states: weights and optimizer states, where they are recorded.
    """

    activations: list[LayerRecord] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    scaled: list[torch.Tensor] = field(default_factory=list)
    true: list[torch.Tensor] = field(default_factory=list)
    scalars: dict[str, torch.Tensor] = field(default_factory=dict)
    sketches: dict[str, TensorSketch] = field(default_factory=dict)
    local: dict[str, torch.Tensor] = field(default_factory=dict)
    local_sketches: dict[str, TensorSketch] = field(default_factory=dict)
    sharded: bool = False
    states: StepStates | None = None

    def packed(self, device: torch.device) -> PackedNotes | None:
        """Return everything in one vector on ``device``; None where nothing was noted. Waits for nothing."""
        single = [*self.scalars.values(), *(each.largest for each in self.activations), *self.local.values()]
        true = self.true if "scale" in self.scalars else []
        parts = [*(value.reshape(1) for value in single), *(each.numbers for each in self._drawn())]
        counted = None if self.states is None else self.states.counted(device)
        parts += [*(() if counted is None else (counted,)), *self.scaled, *true]
        if not parts:
            return None
        wide = traits(device).wide_dtype
        return PackedNotes(self, torch.cat([part.to(device, wide, non_blocking=True) for part in parts]))

    def _drawn(self) -> list[TensorSketch]:
        """Return all sketches, in the order in which they are packed."""
        of_layers = [each.sketch for each in self.activations if each.sketch is not None]
        return [*of_layers, *self.sketches.values(), *self.local_sketches.values()]


@dataclass(frozen=True)
class PackedNotes:
    """Notes whose numbers lie in one vector.

    Attributes:
        notes: what the numbers are of.
        numbers: floating-point, on the device.
    """

    notes: Notes
    numbers: torch.Tensor

    def copied(self) -> PackedNotes:
        """Return the same with a copy of the numbers, which later replays do not change."""
        return replace(self, numbers=self.numbers.clone())

    def read(self) -> ReadNotes:
        """Return the numbers as plain values; waits for the device once."""
        notes, numbers = self.notes, self.numbers.cpu()
        tables = 2 if "scale" in notes.scalars else 1
        start = numbers.numel() - tables * len(notes.names) * recording.BUCKETS
        table = numbers[start:].long().reshape(tables, len(notes.names), recording.BUCKETS).tolist()
        rows = [] if notes.states is None else notes.states.rows
        states = read(rows, numbers[start - NUMBERS * len(rows) : start].reshape(-1, NUMBERS).tolist())
        left = iter(numbers[: start - NUMBERS * len(rows)].tolist())
        scalars = {name: next(left) for name in notes.scalars}
        activations = [recording.Activation(*each[:4], next(left)) for each in notes.activations]
        finite = {name: math.isfinite(next(left)) for name in notes.local}
        both = zip(notes.names, table[0], table[-1], strict=True)
        gradients = {name: recording.GradientCounts(scaled, true) for name, scaled, true in both}
        return ReadNotes(notes, scalars, activations, finite, gradients, list(left), states)


@dataclass(frozen=True)
class ReadNotes:
    """Notes as plain values.

    Attributes:
        notes: what they were read from.
        scalars, activations, gradients: as they were noted.
        finite: whether this rank's own gradients were.
        drawn: the numbers of all sketches.
        states: weights and optimizer states.
    """

    notes: Notes
    scalars: dict[str, float]
    activations: list[recording.Activation]
    finite: dict[str, bool]
    gradients: dict[str, recording.GradientCounts]
    drawn: Sequence[float]
    states: recording.States

    def sketches(self, scale: float) -> tuple[recording.StepSketches, dict[str, Sketch]]:
        """Return the sketches, and those of this rank's own gradients; gradients are divided by ``scale``."""
        numbers: Iterator[float] = iter(self.drawn)
        found = recording.StepSketches(
            [each.sketch.read(numbers) for each in self.notes.activations if each.sketch is not None],
            {name: each.read(numbers, scale) for name, each in self.notes.sketches.items()},
        )
        return found, {name: each.read(numbers, scale) for name, each in self.notes.local_sketches.items()}


def merged(parts: Sequence[ReadNotes], rank: int | None, compare: bool) -> recording.RecordedStep:
    """Return what the calls of one step noted, the micro-batches of a window, as one step.

    Args:
        parts: of each call, in order.
        rank: of this process, if others train with it.
        compare: sketches were noted.
    """
    scalars: dict[str, float] = {}
    activations: list[recording.Activation] = []
    gradients: dict[str, recording.GradientCounts] = {}
    finite: dict[str, bool] = {}
    for part in parts:
        scalars |= part.scalars
        activations += part.activations
        gradients |= part.gradients
        finite |= {name: each and finite.get(name, True) for name, each in part.finite.items()}
    scale, loss = scalars.get("scale", 1.0), scalars.get("loss")
    sketches, own_sketches = _sketches([part.sketches(scale) for part in parts]) if compare and parts else (None, None)
    own = [recording.LocalStep(rank, activations, finite, loss, own_sketches)] if rank is not None and parts else []
    sharded = any(part.notes.sharded for part in parts)
    return recording.RecordedStep(scale, loss, gradients, activations, own, sharded, sketches)


def _sketches(
    parts: Sequence[tuple[recording.StepSketches, dict[str, Sketch]]],
) -> tuple[recording.StepSketches, recording.StepSketches]:
    """Return the sketches of all calls, after the sum over ranks and before it; a rank's own gradients add up."""
    gradients: dict[str, Sketch] = {}
    local: dict[str, Sketch] = {}
    for part, own in parts:
        gradients |= part.gradients
        local |= {name: each.plus(local[name]) if name in local else each for name, each in own.items()}
    activations = [each for part, _ in parts for each in part.activations]
    return recording.StepSketches(activations, gradients), recording.StepSketches(activations, local)
