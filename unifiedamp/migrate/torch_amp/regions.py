"""Autocast regions: which of them see the session, and what they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work
from .arguments import enabled_of, policy_of
from .scaler import Scaler
from .session import Session
from .words import AUTOCAST

_NOTHING = ("nullcontext", "suppress", "ExitStack", "dummy_context", "null_context", "nullcontext_")


def leave(work: Work, node: cst.CSTNode, what: str) -> None:
    """Leave a region as it is, and say so."""
    write = "it goes on working as it is; where a session can be seen, write `with amp.autocast():`"
    work.note(node, what, write)


def seen_regions(work: Work, scalers: Sequence[Scaler]) -> dict[cst.Call, str]:
    """Return each autocast that sees a session, with its policy; the others are left."""
    seen: dict[cst.Call, str] = {}
    for call in work.source.calls(*AUTOCAST):
        decorates = isinstance(work.source.parents[call], cst.Decorator)
        if not decorates and _entered(work.source, call) is None:
            work.block(call, f"`{work.source.code(call)}` outside a with statement",
                       "write `with amp.autocast():` where the region is entered")  # fmt: skip
            continue
        if decorates or not any(scaler.seen_from(call) for scaler in scalers):
            leave(work, call, "autocast where the session cannot be seen")
            continue
        with work.blocking():
            seen[call] = policy_of(work, call)
    if not seen and not work.blockers:
        work.block(
            scalers[0].call, "no autocast region where the GradScaler can be seen",
            "compute the loss in `with amp.autocast():` beside the loop (a region in forward() may stay)",
        )  # fmt: skip
    return seen


def rewrite_regions(work: Work, scaler: Scaler, regions: Mapping[cst.Call, str], session: Session) -> None:
    """Make regions the session's.

    Args:
        work: takes the changes.
        scaler: what the session replaces.
        regions: call → the policy of its region.
        session: what replaces the scaler.
    """
    for call, own in regions.items():
        item = _entered(work.source, call)
        assert item is not None
        switch = _switch(work.source, call, item.item)
        arguments = []
        if switch is not None and not _same(work, scaler, session, call, switch):
            arguments.append(f"enabled={_answered(work, scaler, switch)}")
        if own != session.policy:
            arguments.append(f'policy="{own}"')
        work.edits.expression(item.item, f"{scaler.seen_from(call)}.autocast({', '.join(arguments)})")


def _entered(source: Source, call: cst.Call) -> cst.WithItem | None:
    """Return the item of the ``with`` statement that enters a region, by itself or by choice."""
    parent = source.parents[call]
    if isinstance(parent, cst.WithItem):
        return parent
    if isinstance(parent, cst.IfExp):
        other = parent.orelse if parent.body is call else parent.body
        item = source.parents[parent]
        nothing = isinstance(other, cst.Call) and dotted(other.func).rpartition(".")[2] in _NOTHING
        if isinstance(item, cst.WithItem) and nothing:
            return item
    return None


def _switch(source: Source, call: cst.Call, entered: cst.BaseExpression) -> cst.BaseExpression | str | None:
    """Return what says whether a region is on: ``enabled=``, or the condition it is chosen by."""
    own = enabled_of(source, call)
    if not isinstance(entered, cst.IfExp):
        return own
    test = source.code(entered.test)
    test = test if entered.body is call else f"not ({test})"
    return test if own is None else f"({test}) and ({own})"


def _same(work: Work, scaler: Scaler, session: Session, call: cst.Call, switch: object) -> bool:
    """Whether the session's policy already is what the switch says."""
    text = " ".join(str(switch).split())
    if not session.switched:
        return False
    names = {work.source.code(use) for use in scaler.uses}
    if any(text in (name, f"{name} is not None", f"bool({name})", f"{name}.is_enabled()") for name in names):
        return True
    here = work.source.scope(scaler.first.assign) is work.source.scope(call)
    return text == session.switch and (here or "." in text or text.isupper())


def _answered(work: Work, scaler: Scaler, switch: object) -> str:
    """Return a switch that asks for the scaler as one that asks the session."""
    text = str(switch)
    for use in {work.source.code(use) for use in scaler.uses}:
        for question in (f"{use} is not None", f"{use}.is_enabled()"):
            new = use.rpartition(".")[0]
            amp = f"{new}.{work.names.amp}" if new else work.names.amp
            text = text.replace(question, f"{amp}.loss_scale_settings.enabled")
    return text
