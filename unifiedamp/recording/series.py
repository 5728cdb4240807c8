"""The figures that the report's plots show, whoever draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .counts import EMPTY, Distribution
from .reading import Recording

SHOWN = 60
"""Layers or gradients in a plot; more would not be readable."""


def total(recording: Recording, form: str) -> Distribution:
    """Return the values of all gradients together; ``form`` is "true" or "scaled"."""
    found = EMPTY
    for name in recording.gradients:
        found = found.plus(recording.total(name, form))
    return found


def scale_points(recording: Recording) -> dict[int, float]:
    """Return step → loss scale, by rising step."""
    points = {int(record["step"]) + 1: float(record["next_scale"]) for record in [*recording.steps, *recording.skips]}
    points |= {int(step["step"]): float(step["scale"]) for step in recording.steps}
    return dict(sorted(points.items()))


def skipped_exactly(recording: Recording) -> list[int]:
    """Return the steps that are known to have been skipped."""
    found = [int(step["step"]) for step in recording.steps if not step["applied"]]
    return found + [int(skip["step"]) for skip in recording.skips if skip["exact"]]


def skipped_between(recording: Recording) -> list[tuple[int, int]]:
    """Return the ranges of steps in which some were skipped: (first, last)."""
    return [(int(skip["since"]), int(skip["step"])) for skip in recording.skips if not skip["exact"]]


def flushed_shares(recording: Recording, name: str) -> list[float]:
    """Return the share of a scaled gradient that float16 would flush to zero, at each recorded step; nan without."""
    return [_flushed(step["gradients"].get(name)) for step in recording.steps]


def _flushed(gradient: dict[str, Any] | None) -> float:
    counts = EMPTY if gradient is None else Distribution.from_json(gradient["scaled"])
    share = counts.share(counts.flushed)
    return math.nan if share is None else share


@dataclass(frozen=True)
class LargestOutput:
    """A layer's largest finite output over all recorded steps, and in how many of them it was inf or nan."""

    layer: str
    value: float
    broken: int


def largest_outputs(recording: Recording) -> Sequence[LargestOutput]:
    """Return them, in the order of the recording."""
    largest: dict[str, float] = {}
    broken: Counter[str] = Counter()
    for step in recording.steps:
        for row in step["activations"]:
            if row["place"] == "output":
                name, value = row["layer"] or "(model)", float(row["largest"])
                broken[name] += not math.isfinite(value)
                largest[name] = max(largest.get(name, 0.0), value if math.isfinite(value) else 0.0)
    return [LargestOutput(name, value, broken[name]) for name, value in largest.items()]
