"""``scaler.unscale_``: with torch's clipping behind it one call of the session, else ``amp.unscale``."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument
from ..source import Source, Statement
from ..work import Work
from .uses import Use, Uses, optimizer_of, statement_of
from .words import CLIPS


def rewrite_unscale(work: Work, uses: Uses, use: Use) -> None:
    """Rewrite a call of ``unscale_`` and the clipping that it is made for.

    Raises:
        CannotMigrate: its result is used, or it is given something else than an optimizer.
    """
    statement, optimizer = statement_of(work, use.call), optimizer_of(work, use.call)
    for later in work.source.after(statement):
        if any(work.source.inside(call, later) for call in uses.of("step", "scale")):
            break
        if _clip(work, later, optimizer, use.amp):
            work.edits.statement(statement)
            return
    work.edits.statement(statement, f"{use.amp}.unscale({optimizer})")


def _clip(work: Work, statement: Statement, optimizer: str, amp: str) -> bool:
    """Rewrite torch's own clipping of all that the optimizer trains; other clipping works as it is."""
    source = work.source
    for old, (new, key) in CLIPS.items():
        for call in source.calls(old):
            limit, over = argument(call, key, 1), argument(call, "parameters", 0)
            if source.statement(call) is not statement or len(call.args) != 2 or not limit or not over:
                continue
            if source.code(over) == _trains(source, optimizer):
                work.edits.expression(call, f"{amp}.{new}({optimizer}, {source.code(limit)})")
                return True
    return False


def _trains(source: Source, optimizer: str) -> str | None:
    """Return the code of the parameters that an optimizer was made of."""
    made = [a.value for a in source.assigns(optimizer) if isinstance(a.value, cst.Call)]
    texts = {source.code(v.args[0].value) for v in made if v.args}
    text = texts.pop() if len(texts) == 1 else ""
    return text if text.endswith(".parameters()") else None
