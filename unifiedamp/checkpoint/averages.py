"""Averages of weights in a session's state: float32 arrays as text, so that the state stays plain JSON.

A checkpoint file holds the same arrays as separate members; see ``session_arrays``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CheckpointError
from ..loss_scale.saved_values import checked_count, shortened
from ..training.ema import SavedAverage

DTYPES = ("float32", "complex64")


def dump_averages(averages: Sequence[SavedAverage]) -> list[dict[str, Any]]:
    """Return averages as plain JSON values."""
    return [
        {
            "decay": each.decay, "warmup": each.warmup, "updates": list(each.updates),
            "weights": {name: to_text(array) for name, array in each.weights.items()},
        }
        for each in averages
    ]  # fmt: skip


def read_averages(raw: Any) -> list[SavedAverage]:
    """Return the averages of a state.

    Raises:
        CheckpointError: they cannot be read.
    """
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise CheckpointError(f"this state's 'ema' must be a list, got {type(raw).__name__}")
    return [_read(each, f"ema[{number}]") for number, each in enumerate(raw)]


def _read(raw: Any, where: str) -> SavedAverage:
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"this state's {where} must be a mapping, got {type(raw).__name__}")
    missing = [key for key in ("decay", "warmup", "updates", "weights") if key not in raw]
    if missing:
        raise CheckpointError(f"this state is truncated: {where}.{missing[0]} missing")
    decay, warmup, updates, weights = raw["decay"], raw["warmup"], raw["updates"], raw["weights"]
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise CheckpointError(f"this state's {where}.decay must be at least 0 and below 1, got {shortened(decay)}")
    if not isinstance(warmup, bool):
        raise CheckpointError(f"this state's {where}.warmup must be true or false, got {shortened(warmup)}")
    if not isinstance(updates, Sequence) or isinstance(updates, str) or not isinstance(weights, Mapping):
        raise CheckpointError(f"this state's {where} needs a list of updates and a mapping of weights")
    counts = [checked_count(each, f"{where}.updates") for each in updates]
    arrays = {str(name): from_text(text, f"{where}.weights[{name!r}]") for name, text in weights.items()}
    return SavedAverage(float(decay), warmup, counts, arrays)


def to_text(array: Any) -> dict[str, Any]:
    """Return an array of float32 or complex64 as plain JSON values."""
    import numpy as np

    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": data}


def from_text(raw: Any, where: str) -> Any:
    """Return the array that :func:`to_text` was given; an array itself is returned as it is.

    Raises:
        CheckpointError: it is none.
    """
    import numpy as np

    if isinstance(raw, np.ndarray):
        return raw
    if not isinstance(raw, Mapping) or raw.get("dtype") not in DTYPES:
        raise CheckpointError(f"this state's {where} is no array: {shortened(raw)}")
    try:
        content = base64.b64decode(raw["base64"], validate=True)
        shape = [int(size) for size in raw["shape"]]
        array = np.frombuffer(content, np.dtype(raw["dtype"]).newbyteorder("<")).reshape(shape)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CheckpointError(f"this state's {where} cannot be read: {error}") from error
    return array.astype(raw["dtype"])
