"""The state of a loss scale: plain numbers, the same on every backend."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

FLOAT32_MAX = 3.4028234663852886e38


def float32(value: float) -> float:
    """Round ``value`` to the nearest float32 (ties to even), as a Python float; overflow gives inf."""
    if abs(value) > FLOAT32_MAX:
        return math.copysign(math.inf, value)
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class ScaleState:
    """The scale and its counters: plain numbers, the same on every backend.

    Attributes:
        scale: the factor that the next loss is multiplied by (a float32 value).
        good_steps: finite iterations since the last growth or skip.
        bad_steps: non-finite iterations in a row, up to now.
        applied_steps: optimizer steps applied since training began, over all optimizers.
        skipped_steps: optimizer steps skipped for non-finite gradients, over all optimizers.
        hysteresis_steps: non-finite iterations since the last growth, counted up to ``hysteresis``; 0 unless
            ``hysteresis_reset`` is ``"growth"`` and ``hysteresis`` above 1.
    """

    scale: float = 1.0
    good_steps: int = 0
    bad_steps: int = 0
    applied_steps: int = 0
    skipped_steps: int = 0
    hysteresis_steps: int = 0
