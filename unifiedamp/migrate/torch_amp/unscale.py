"""``scaler.unscale_``: with torch's clipping behind it one call of the session, else ``amp.unscale``."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument
from ..source import Statement
from ..training.clips import Clips
from ..training.loops import Loops
from ..training.values import parameters_of
from ..work import Work
from .arguments import CLIPS
from .uses import Use, Uses, optimizer_of, statement_of


def rewrite_unscale(work: Work, loops: Loops, uses: Uses, use: Use) -> None:
    """Rewrite a call of ``unscale_`` and the clipping that it is made for.

    Raises:
        CannotMigrate: its result is used, or it is given something else than an optimizer.
    """
    statement, optimizer = statement_of(work, use.call), optimizer_of(work, use.call)
    for later in work.source.after(statement):
        if any(work.source.inside(call, later) for call in uses.of("step", "scale")):
            break
        if _clip(work, loops, later, use.call, use.amp):
            work.edits.statement(statement)
            return
    work.edits.statement(statement, f"{use.amp}.unscale({optimizer})")


def _clip(work: Work, loops: Loops, statement: Statement, unscale: cst.Call, amp: str) -> bool:
    """Rewrite torch's own clipping of all that the optimizer trains; other clipping works as it is."""
    source, optimizer = work.source, unscale.args[0].value
    for old, (new, key) in CLIPS.items():
        for call in source.calls(old):
            limit, over = argument(call, key, 1), argument(call, "parameters", 0)
            if source.statement(call) is not statement or len(call.args) != 2 or not limit or not over:
                continue
            model = parameters_of(over)
            made = loops.optimizers.get(loops.aliases.of(optimizer))
            if model is not None and made is not None and Clips(loops).trains_all(made, model):
                work.edits.expression(call, f"{amp}.{new}({source.code(optimizer)}, {source.code(limit)})")
                return True
    return False
