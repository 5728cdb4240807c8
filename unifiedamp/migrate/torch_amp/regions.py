"""Autocast regions: which of them see the session, and what they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from ..nodes import walk
from ..work import Work
from .absent import Absent
from .arguments import AUTOCAST, enabled_of, policy_code, policy_of
from .entered import choice, entered, maker, not_entered, switch_at
from .scaler import Scaler
from .session import Session


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
            work.block(call, *not_entered(work.source, call))
            continue
        seers = [scaler for scaler in scalers if not decorates and all(map(scaler.seen_from, items))]
        if not seers:
            leave(work, call, "autocast where the session cannot be seen")
            continue
        with work.blocking():
            seen[call] = policy_of(work, call, work.source.scope(seers[0].first.assign))
    if not seen and not work.blockers:
        work.block(
            scalers[0].call, "no autocast region where the GradScaler can be seen",
            "compute the loss in `with amp.autocast():` beside the loop (a region in forward() may stay)",
        )  # fmt: skip
    return seen


def rewrite_regions(
    work: Work, scaler: Scaler, regions: Mapping[cst.Call, str], session: Session, absent: Absent
) -> None:
    """Make regions the session's.

    Args:
        work: takes the changes.
        scaler: what the session replaces.
        regions: call → the policy of its region.
        session: what replaces the scaler.
        absent: the functions that are also called without a scaler.
    """
    for call, own in regions.items():
        for item in entered(work.source, call):
            switch = switch_at(work.source, call, item)
            arguments = []
            if switch is not None and scaler.always and _is_question(work, scaler, switch):
                _refuse_switched(work, session, call, switch)  # it is on, as there is a scaler with the flag off too
            elif switch is not None and not _same(work, scaler, session, call, switch):
                _refuse_unknown(work, call, item, switch)
                arguments.append(f"enabled={_answered(work, scaler, switch)}")
            if own != session.policy:
                arguments.append(f"policy={policy_code(own)}")
            region, other = f"{scaler.seen_from(item)}.autocast({', '.join(arguments)})", absent.otherwise(item)
            work.edits.expression(item.item, region if other is None else f"{region} if {other[0]} else {other[1]}")
        parent = work.source.parents[choice(work.source, call) or call]
        if isinstance(parent, cst.Assign):
            work.edits.statement(work.source.statement(call))
        elif isinstance(parent, cst.Return):
            work.edits.statement(maker(work.source, parent))


def _is_question(work: Work, scaler: Scaler, switch: str) -> bool:
    """Whether a region is on wherever there is a scaler."""
    text = " ".join(switch.split()).removeprefix("(").removesuffix(")")
    names = {work.source.code(use) for use in scaler.uses}
    return any(text in (name, f"{name} is not None", f"bool({name}") for name in names)


def _refuse_switched(work: Work, session: Session, call: cst.Call, switch: str) -> None:
    """Refuse a region that is on with a disabled scaler, too, where the session would compute in float32."""
    if session.switched:
        what = f"a region that is on if {switch}, with a disabled GradScaler too, where the session is not"
        work.block(call, what, "let the region and the scaler depend on one flag: `autocast(enabled=flag)`")


def _refuse_unknown(work: Work, call: cst.Call, item: cst.WithItem, switch: str) -> None:
    """Refuse a region that is kept in an attribute, and whose switch the method that enters it does not know."""
    kept = isinstance(work.source.parents[choice(work.source, call) or call], cst.Assign)
    if not kept or work.source.scope(call) is work.source.scope(item):
        return
    inside = list(walk(cst.parse_expression(switch)))
    parts = {one.attr for one in inside if isinstance(one, cst.Attribute)}
    names = {one.value for one in inside if isinstance(one, cst.Name) and one not in parts} - {"self"}
    roots = {name for name in names if work.source.bound_in(name, work.source.scope(call))}
    if roots:
        what = f"a region that is kept in an attribute and depends on {', '.join(sorted(roots))}"
        work.block(call, what, "keep the flag in an attribute too, and write `with amp.autocast(enabled=self.flag):`")


def _same(work: Work, scaler: Scaler, session: Session, call: cst.Call, switch: object) -> bool:
    """Whether the session's policy already is what the switch says."""
    text = " ".join(str(switch).split())
    if not session.switched:
        return False
    names = {work.source.code(use) for use in scaler.uses}
    if any(text in (name, f"{name} is not None", f"bool({name})", f"{name}.is_enabled()") for name in names):
        return True
    if session.switch == enabled_of(work.source, scaler.call) and session.is_switched_as(call):
        return True
    here = work.source.scope(scaler.first.assign) is work.source.scope(call)
    seen = here or (("." in text or text.isupper()) and session.means_the_same(call, text))
    return text == session.switch and seen


def _answered(work: Work, scaler: Scaler, switch: object) -> str:
    """Return a switch that asks for the scaler as one that asks the session."""
    text = str(switch)
    for use in {work.source.code(use) for use in scaler.uses}:
        new = use.rpartition(".")[0]
        amp = f"{new}.{work.names.amp}" if new else work.names.amp
        enabled = f"{amp}.loss_scale_settings.enabled"
        there = f"{amp} is not None" if scaler.always else enabled
        text = text.replace(f"{use} is not None", there).replace(f"{use}.is_enabled()", enabled)
    return text
