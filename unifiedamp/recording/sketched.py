"""Sketches in records: what ``amp.record(compare=True)`` adds to a recorded step, for ``unifiedamp diff``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..backend.recording import Activation, LocalStep, RecordedStep, StepSketches
from ..backend.sketch import Sketch, sketch_of
from .sinks import number

Weights = Mapping[str, Any]
"""Name → float32 or complex64 numpy array."""


def to_json(sketch: Sketch) -> dict[str, Any]:
    """Return a sketch as plain JSON values, with the digits of a float32."""
    found: dict[str, Any] = {"shape": list(sketch.shape), "dtype": sketch.dtype, "norm": _rounded(sketch.norm)}
    parts = {"sketch": sketch.values, "ordered": sketch.ordered, "batch": sketch.batch}
    return found | {name: [_rounded(value) for value in part] for name, part in parts.items() if part}


def layers_to_json(activations: Sequence[Activation], sketches: StepSketches) -> list[dict[str, Any]]:
    """Return the sketches of what went into layers and came out of them."""
    rows = zip(activations, sketches.activations, strict=True)
    return [
        {"layer": seen.layer, "kind": seen.kind, "place": seen.place, "function": seen.function, **to_json(one)}
        for seen, one in rows
    ]


def rank_layers_to_json(activations: Sequence[Activation], sketches: StepSketches) -> list[dict[str, Any]]:
    """Return what adds up over ranks of them: norms, and sketches of sums over the batch."""
    rows = layers_to_json(activations, sketches)
    return [{name: value for name, value in row.items() if name not in ("sketch", "ordered")} for row in rows]


def step_to_json(seen: RecordedStep, sketches: StepSketches, before: Weights, after: Weights) -> dict[str, Any]:
    """Return what a step's record holds under ``"compare"``; of several ranks, the layers of the first one here.

    Args:
        seen: the step.
        sketches: of its tensors.
        before: the weights when it began.
        after: when it had ended.
    """
    own: RecordedStep | LocalStep = next((each for each in seen.local if each.activations), seen)
    return {
        "layers": layers_to_json(own.activations, own.sketches or sketches),
        "gradients": {name: to_json(each) for name, each in sketches.gradients.items()},
        "before": {name: to_json(sketch_of(_real(array))) for name, array in before.items()},
        "update": {name: to_json(_update(before[name], array)) for name, array in after.items() if name in before},
    }


def _update(before: Any, after: Any) -> Sketch:
    if before.shape != after.shape:  # the loop replaced the parameter
        return sketch_of(_real(after))
    return sketch_of(_real(after).astype("float64") - _real(before))


def _rounded(value: float) -> Any:
    return float(f"{value:.9g}") if math.isfinite(value) else number(value)


def _real(array: Any) -> Any:
    """Return a real array; of a complex one, real and imaginary parts."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array
