"""Autocast regions: which of them see the session, and what they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work
from .arguments import AUTOCAST, enabled_of, policy_code, policy_of
from .scaler import Scaler
from .session import Session

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
        items = entered(work.source, call)
        if not decorates and not items:
            work.block(call, f"`{work.source.code(call)}` outside a with statement",
                       "write `with amp.autocast():` where the region is entered")  # fmt: skip
            continue
        if decorates or not any(all(map(scaler.seen_from, items)) for scaler in scalers):
            leave(work, call, "autocast where the session cannot be seen")
            continue
        with work.blocking():
            seen[call] = policy_of(work, call, work.source.scope(scalers[0].first.assign))
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
        switch = _switch(work.source, call)
        arguments = []
        if switch is not None and not _same(work, scaler, session, call, switch):
            arguments.append(f"enabled={_answered(work, scaler, switch)}")
        if own != session.policy:
            arguments.append(f"policy={policy_code(own)}")
        for item in entered(work.source, call):
            work.edits.expression(item.item, f"{scaler.seen_from(item)}.autocast({', '.join(arguments)})")
        if isinstance(work.source.parents[_choice(work.source, call) or call], cst.Assign):
            work.edits.statement(work.source.statement(call))


def entered(source: Source, call: cst.Call) -> list[cst.WithItem]:
    """Return the items of the ``with`` statements that enter a region: itself, by choice, or kept in a variable."""
    place = _choice(source, call) or call
    parent = source.parents[place]
    if isinstance(parent, cst.WithItem):
        return [parent]
    name = dotted(parent.targets[0].target) if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else ""
    if not name or "." in name or len(source.assigns(name)) > 1:
        return []
    items = [source.parents[use] for use in source.uses(name) if not isinstance(source.parents[use], cst.AssignTarget)]
    found = [item for item in items if isinstance(item, cst.WithItem)]
    return found if len(found) == len(items) else []


def _choice(source: Source, call: cst.Call) -> cst.IfExp | None:
    """Return ``autocast() if flag else nullcontext()``."""
    parent = source.parents[call]
    if not isinstance(parent, cst.IfExp):
        return None
    other = parent.orelse if parent.body is call else parent.body
    nothing = isinstance(other, cst.Call) and dotted(other.func).rpartition(".")[2] in _NOTHING
    return parent if nothing else None


def _switch(source: Source, call: cst.Call) -> str | None:
    """Return what says whether a region is on: ``enabled=``, or the condition it is chosen by."""
    own, choice = enabled_of(source, call), _choice(source, call)
    if choice is None:
        return own
    test = source.code(choice.test)
    test = test if choice.body is call else f"not ({test})"
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
