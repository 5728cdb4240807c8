"""A function that is given its optimizer, and trains with a scaler of its class or module."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ..nodes import dotted, parameters
from ..source import Statement
from ..training.aliases import Key
from ..work import Work
from .arguments import AUTOCAST
from .scaler import Scaler
from .uses import Uses


def taker(work: Work, scaler: Scaler, groups: Collection[Key | None], uses: Uses) -> Statement | None:
    """Return the statement with the loop, or the step, of the one function that is given the optimizer and takes whole
    steps with it, or None. Preparing before it at each call is preparing once: a session knows what it has prepared.

    Args:
        work: the file.
        scaler: what the session replaces.
        groups: the groups of the optimizers that it steps.
        uses: the calls on it.
    """
    source = work.source
    scopes = {source.scope(call) for call in uses.of("scale", "step")}
    scope = scopes.pop() if len(scopes) == 1 else None
    if not isinstance(scope, cst.FunctionDef) or len(groups) != 1 or source.scope(scaler.first.assign) is scope:
        return None
    given = {dotted(one) for one in uses.optimizers} <= set(parameters(scope))
    regions = [call for call in source.calls(*AUTOCAST) if source.scope(call) is scope]
    if not given or not regions or not isinstance(scope.body, cst.IndentedBlock):
        return None
    statement = source.in_block(regions[0], scope.body)
    if statement is None or any(source.order[call] < source.order[statement] for call in uses.of("scale", "step")):
        return None
    return statement if scaler.seen_from(statement) is not None else None
