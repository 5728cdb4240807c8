"""The condition of ``amp.skip_if``: a number is read here, a tensor stays on its device."""

from __future__ import annotations

from typing import Any

from ..errors import WrongObjectError

READABLE = "biuf"
"""Kinds of numpy dtypes that have a truth value here: bools and real numbers."""


def read_condition(condition: Any) -> Any:
    """Return a bool for a number of Python or numpy, and anything that looks like a tensor as it is.

    Raises:
        WrongObjectError: it is neither, or an array of numpy that is no scalar.
    """
    if isinstance(condition, (bool, int, float)):
        return bool(condition)
    if type(condition).__module__.partition(".")[0] == "numpy" and hasattr(condition, "dtype"):
        return _read_numpy(condition)
    if not (hasattr(condition, "dtype") and hasattr(condition, "shape")):
        raise refusal(f"got {type(condition).__name__}")
    return condition


def _read_numpy(condition: Any) -> bool:
    if condition.shape != ():
        raise refusal(f"got shape {tuple(condition.shape)}; reduce it first, as by .any()")
    if condition.dtype.kind not in READABLE:
        raise refusal(f"got {condition.dtype}")
    return bool(condition)


def refusal(got: str) -> WrongObjectError:
    """Return the error for a condition that is none."""
    return WrongObjectError(f"amp.skip_if: the condition must be a bool, or a scalar tensor of bools or numbers; {got}")
