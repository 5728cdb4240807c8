"""From which width on layers train faster in float8 than in bfloat16, measured on this device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from .interleaved import interleave, ratio

WIDTHS = (512, 1024, 2048, 4096)
"""Inputs and outputs of the dense layers that are trained."""
ROWS = 8192
"""Rows of a batch: the products of small layers need many to fill a GPU."""
POLICIES = ("mixed_float8", "mixed_bfloat16")

Turn = Callable[[], float]


def measure(make: Callable[[str, int, int], Turn], rounds: int) -> dict[str, Any]:
    """Return "widths", width → speed of float8 over that of bfloat16 (above 1: faster), and "from", see :func:`least`;
    or "failed", why a width could not be trained.

    Args:
        make: policy, rows and width → a function that trains for a moment and returns steps per second.
        rounds: turns of each policy, interleaved.
    """
    widths: dict[str, Any] = {}
    for width in WIDTHS:
        try:
            rates = interleave({policy: make(policy, ROWS, width) for policy in POLICIES}, rounds)
        except Exception as error:
            return {"failed": f"width {width}: {type(error).__name__}: {error}"[:300]}
        found = asdict(ratio(*(rates[policy] for policy in POLICIES)))
        widths[str(width)] = {key: round(value, 3) for key, value in found.items()}
    return {"widths": widths, "from": least(widths)}


def least(widths: Mapping[str, Mapping[str, float]]) -> int | None:
    """Return the smallest width from which on all are faster in float8 beyond the noise; None for none."""
    found = None
    for width in sorted(map(int, widths), reverse=True):
        if widths[str(width)]["low"] <= 1:
            break
        found = width
    return found


def advice(found: Mapping[str, Any]) -> str:
    """Return one line for people."""
    if "failed" in found:
        return f"float8 by width was not measured: {found['failed']}"
    figures = ", ".join(f"{width}: {each['value']:.2f}x" for width, each in found["widths"].items())
    if found["from"] is None:
        return f"float8 gains over bfloat16 at no measured width of layers ({figures})"
    return f"float8 gains over bfloat16 from width {found['from']} of layers on ({figures}); leave smaller ones out"
