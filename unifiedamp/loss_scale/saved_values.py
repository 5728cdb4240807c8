"""Values of saved states, checked, and what is read from a state of another system."""

from __future__ import annotations

import math
import reprlib
from typing import Any, NamedTuple

from ..errors import CheckpointError
from .settings import LossScale
from .state import FLOAT32_MAX, ScaleState, float32

MOST = 2**52
"""The largest count: the sum of two is exact in float64, in which some devices count."""
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


class ForeignState(NamedTuple):
    """What the state of another system holds.

    Attributes:
        state: the numbers; None when its scaler was off.
        loss_scale: the settings it was saved under, where the layout holds some.
        source: the system, for messages.
        held: the names of the settings that the layout holds; None for all.
        hysteresis_left: non-finite iterations before a backoff, the one that backs off included; None where the layout
            does not hold it.
    """

    state: ScaleState | None
    loss_scale: LossScale | None
    source: str
    held: tuple[str, ...] | None = None
    hysteresis_left: int | None = None


def checked_scale(value: Any, name: str) -> float:
    """Return a saved scale, rounded to the nearest float32.

    Raises:
        CheckpointError: not a finite number above 0 that float32 can hold.
    """
    number = checked_factor(value, name)
    if not float32(number):
        raise CheckpointError(f"{name} must be a positive number that float32 can hold, got {shortened(value)}")
    return float32(number)


def checked_factor(value: Any, name: str) -> float:
    """Return a saved factor as it is; see :func:`checked_scale`."""
    number = _plain(value, name)
    if not 0 < number <= FLOAT32_MAX:
        raise CheckpointError(f"{name} must be a positive number that float32 can hold, got {shortened(value)}")
    return float(number)


def checked_count(value: Any, name: str) -> int:
    """Return a saved count.

    Raises:
        CheckpointError: not a whole number from 0 to :data:`MOST`.
    """
    return checked_whole(value, name, 0)


def checked_whole(value: Any, name: str, least: int) -> int:
    """Return a saved whole number from ``least`` to :data:`MOST`; see :func:`checked_count`."""
    number = _plain(value, name)
    if not least <= number <= MOST or number != int(number):
        low = "-2**52" if least == -MOST else str(least)
        raise CheckpointError(f"{name} must be a whole number from {low} to 2**52, got {shortened(value)}")
    return int(number)


def _plain(value: Any, name: str) -> int | float:
    """Return a number, or an array of one number without axes, as a plain number that is finite."""
    try:
        plain = value.numpy() if hasattr(value, "numpy") else value
        plain = plain.item() if hasattr(plain, "item") and not getattr(plain, "ndim", 0) else plain
    except Exception as error:  # an array of any framework, which cannot be read for any reason
        raise CheckpointError(f"{name} cannot be read: {error}") from error
    # Of floats only; a whole number may be too large for isfinite.
    if type(plain) is not int and not (type(plain) is float and math.isfinite(plain)):
        raise CheckpointError(f"{name} must be a finite number, got {shortened(value)}")
    return plain


def shortened(value: Any) -> str:
    """Return a value's text for a message; of a long one its beginning and end."""
    try:
        return _repr.repr(value)
    except Exception:  # repr is the value's, and may fail for any reason
        return f"a value of type {type(value).__name__}"
