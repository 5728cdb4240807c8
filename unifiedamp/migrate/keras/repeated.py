"""Calls that set a policy which is set already, as under ``if gpus:``; they change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import literal
from ..source import Source
from .words import VALUE


def repeats(source: Source, calls: Sequence[cst.Call]) -> list[cst.Call]:
    """Return the calls that set what a module's first one has set, whatever happens.

    Args:
        source: the file.
        calls: all of the file's that set a policy, in order; one under a flag has the flag as an argument (flags.py).
    """
    first, name = calls[0], _name(source, calls[0])
    above = [one for one in source.above(first) if not isinstance(one, cst.Module)]
    sure = source.is_alone(first) and all(isinstance(one, cst.SimpleStatementLine | cst.Expr) for one in above)
    if not name or not sure or len(first.args) > 1 or any(source.order[one] < source.order[first] for one in calls):
        return []
    return [one for one in calls[1:] if _name(source, one) == name and source.is_alone(one)]


def _name(source: Source, call: cst.Call) -> str:
    """Return the policy that a call names, and nothing where more is said than that."""
    if not call.args:
        return ""
    value = call.args[0].value
    if isinstance(value, cst.Call) and VALUE.fullmatch(source.meaning(value.func)) and len(value.args) == 1:
        value = value.args[0].value
    name = literal(value)
    return name if isinstance(name, str) else ""
