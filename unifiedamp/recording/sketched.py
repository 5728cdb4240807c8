"""Sketches in records: what ``amp.record(compare=True)`` adds to a recorded step, for ``unifiedamp diff``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..backend.recording import Activation, StepSketches
from ..backend.sketch import Sketch, sketch_of
from .sinks import number


def to_json(sketch: Sketch, digits: int = 9) -> dict[str, Any]:
    """Return a sketch as plain JSON values; ``digits`` are by default those of a float32."""
    norm, *values = (_rounded(value, digits) for value in (sketch.norm, *sketch.values))
    return {"shape": list(sketch.shape), "dtype": sketch.dtype, "norm": norm, "sketch": values}


def weights_to_json(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sketches of numpy arrays by name; of what is complex, real and imaginary parts."""
    return {name: to_json(sketch_of(_real(array)), digits=17) for name, array in weights.items()}


def step_to_json(
    activations: Sequence[Activation], sketches: StepSketches, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a step's record holds under ``"compare"``.

    Args:
        activations: of the step.
        sketches: of its tensors.
        before: sketches of the weights when it began, as JSON.
        after: when it had ended.
    """
    rows = zip(activations, sketches.activations, strict=True)
    return {
        "layers": [{"layer": seen.layer, "kind": seen.kind, "place": seen.place, **to_json(one)} for seen, one in rows],
        "gradients": {name: to_json(each) for name, each in sketches.gradients.items()},
        "before": before,
        "after": after,
    }


def _rounded(value: float, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else number(value)


def _real(array: Any) -> Any:
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array
