"""What a number format would do to recorded values: from a record, for formats that the run does not use.

Values are counted by powers of two, and taken as spread evenly over each: shares that end between two powers of two
(those beyond 448 of float8_e4m3fn) are estimates, shares below one are exact up to the rounding of its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, nearest
from ..formats import FLOAT_FORMATS, FloatFormat
from .counts import Distribution

WIDE = ("float16", "bfloat16")
"""Formats that values are cast to as they are; to narrower ones they are scaled."""


@dataclass(frozen=True)
class Lost:
    """What a format would do to the values of one tensor, as shares (0 to 1) of those that are finite and not zero.

    Attributes:
        flushed: that become zero.
        subnormal: that become a subnormal number, which holds fewer bits.
        overflow: beyond the largest number: saturated, or lost.
        error: the mean squared relative error of all.
        scale: what values are multiplied by before they are rounded.
    """

    flushed: float
    subnormal: float
    overflow: float
    error: float
    scale: float


def lost(values: Distribution, format: str, scale: float | None = None) -> Lost | None:
    """Return what rounding to ``format`` would do; None without a finite value that is not zero.

    The arithmetic is that of ``amp.forecast``.

    Args:
        values: of one tensor.
        format: a name of ``unifiedamp.formats.FLOAT_FORMATS``.
        scale: what values are multiplied by first. None: 1 for float16 and bfloat16; for narrower formats the power of
            two that brings the largest value to between a quarter and half of the first power of two that is too large.

    Raises:
        ConfigError: the format is not known, or the scale is not positive.
    """
    from ..forecast.losses import rounding  # numpy, which a session does not need

    chosen = format_of(format)
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise ConfigError(f"lost: scale must be a positive number, got {scale!r}")
    if not values.there:
        return None
    used = _scale(values, chosen) if scale is None else float(scale)
    found = rounding(_places(values), 2.0 ** (max(values.exponents) + 1), chosen, used, chosen.name not in WIDE)
    there = float(found.values)
    flushed, subnormal, overflow, error = (
        float(each) / there for each in (found.flushed, found.subnormal, found.overflow, found.error)
    )
    return Lost(flushed, subnormal, overflow, error, used)


def format_of(name: str) -> FloatFormat:
    """Return a format by its name.

    Raises:
        ConfigError: it is not known.
    """
    if name not in FLOAT_FORMATS:
        raise ConfigError(
            f"unknown number format {name!r}{nearest(name, FLOAT_FORMATS)}; it is one of {', '.join(FLOAT_FORMATS)}"
        )
    return FLOAT_FORMATS[name]


def recorded(step: Mapping[str, Any], part: str) -> Iterator[tuple[str, Distribution]]:
    """Yield names and values of a step's record.

    Args:
        step: a record of kind "step".
        part: "true" or "scaled" gradients, by parameter; "states" by parameter and state, "0.weight/exp_avg", where
            they were recorded.
    """
    if part == "states":
        for name, states in step.get("states", {}).items():
            yield from ((f"{name}/{state}", Distribution.from_json(each)) for state, each in states.items())
    else:
        yield from ((name, Distribution.from_json(each[part])) for name, each in step["gradients"].items())


def _scale(values: Distribution, format: FloatFormat) -> float:
    if format.name in WIDE:
        return 1.0
    return float(2.0 ** min(126, format.max_exponent - 1 - max(values.exponents)))


def _places(values: Distribution) -> Any:
    """Return counts as ``backend.forecast`` has them: each power of two is eight of its places."""
    import numpy as np

    from ..backend.forecast import PLACES

    counts = np.zeros(PLACES)
    for exponent, count in values.exponents.items():
        first = (exponent + 127) * 8
        places = slice(first, first + 8) if first else slice(1, 8)
        counts[places] += count / len(counts[places])
    return counts
