"""``torch.amp`` and ``torch.cuda.amp``: autocast regions and a ``GradScaler`` become one session."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ..nodes import dotted, keywords
from ..sessions import free_name
from ..source import Source
from ..training.aliases import Aliases
from ..training.loops import Loops
from ..training.optional import refuse_left_out
from ..work import Work
from .absent import Absent
from .arguments import AUTOCAST, CUSTOM, NAME, OLD_IMPORTS, SCALERS
from .calls import rewrite_calls
from .ended import ended_before_backward
from .entered import entered
from .factories import by_factory
from .given_optimizer import by_given_optimizer
from .named import by_choice
from .prepare import model_groups, prepare
from .regions import leave, rewrite_regions, seen_regions
from .scaler import Scaler, find_scalers
from .session import Session, common_flag
from .uses import find_uses
from .wrapped import block_wrapped, note_wrapped, wrapped


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return (
        bool(source.calls(*AUTOCAST, *SCALERS, *CUSTOM))
        or any(
            isinstance(node, cst.Decorator) and source.meaning(node.decorator) in (*AUTOCAST, *CUSTOM)
            for node in source.nodes
        )
        or bool(wrapped(source, "Native"))
    )


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    _note_custom(work)
    calls = work.source.calls(*SCALERS)
    if not calls:
        for call in work.source.calls(*AUTOCAST):
            leave(work, call, "autocast without a GradScaler made in this file")
        _note_others(work)
        note_wrapped(work)
        return
    for name in ("apex.amp.initialize", "apex.amp.scale_loss"):
        if work.source.calls(name):
            raise work.stop(calls[0], f"a GradScaler beside {name}", "keep one of the two, and run migrate again")
    work.names = replace(work.names, amp=free_name(work.source, work.names.amp))
    aliases = Aliases(work.source)
    scalers = find_scalers(work, aliases, calls)
    if scalers:
        _refuse_references(work)
        regions = seen_regions(work, scalers)
        for scaler in scalers:
            _plan_one(work, aliases, scaler, _seen(work, scaler, regions))
    work.decide()


def _seen(work: Work, scaler: Scaler, regions: dict[cst.Call, str]) -> dict[cst.Call, str]:
    """Return the regions that are entered where a session can be seen."""
    return {
        call: policy
        for call, policy in regions.items()
        if all(scaler.seen_from(item) is not None for item in entered(work.source, call))
    }


def _plan_one(work: Work, aliases: Aliases, scaler: Scaler, regions: dict[cst.Call, str]) -> None:
    """Work out the changes for one session."""
    uses = find_uses(work, aliases, scaler)
    flag = common_flag(work, scaler, uses.of("scale"))
    refuse_left_out(work, aliases, [one.call for one in scaler.made if one.call], uses.of("scale"))
    session = Session(work, aliases, scaler, regions, flag)
    optimizers = {aliases.of(one): work.source.code(one) for one in uses.optimizers}
    models = model_groups(work.source, aliases)
    loops = Loops(work, aliases, set(models), {k: v for k, v in optimizers.items() if k}, scaler.seen_from)
    rewrite_calls(work, uses, loops)
    with work.blocking():
        loops.models |= prepare(work, aliases, scaler, session, uses)
    plain = f"autocast({'' if session.switched else 'enabled=False'})"
    scaled = set(uses.of("scale"))
    withs = [work.source.parents[item] for call in regions for item in entered(work.source, call)]
    loops.regions = {one for one in withs if isinstance(one, cst.With)}
    loops.unclear = not loops.models
    loops.rewrite(
        lambda site: (
            f"with {loops.session_at(site.call)}.{plain}:"
            if site.call not in scaled and site not in loops.sites
            else None
        )
    )
    absent = Absent(work, aliases, scaler, loops, list(regions))
    rewrite_regions(work, scaler, regions, session, absent)
    scaler.rename()


def _refuse_references(work: Work) -> None:
    """Refuse ``region = torch.autocast`` and ``torch.autocast(**options)``: what they mean is not followed."""
    for call in work.source.calls(*AUTOCAST, *SCALERS):
        if "*" in keywords(call):
            work.block(call, f"{work.source.code(call)}, whose arguments cannot be seen", "name the arguments")
    for node in work.source.nodes:
        if not isinstance(node, cst.Attribute | cst.Name) or work.source.meaning(node) not in (*AUTOCAST, *SCALERS):
            continue
        parent = work.source.parents[node]
        inner = isinstance(parent, cst.Attribute) and parent.value is node
        known = (cst.Call, cst.Decorator, cst.Attribute, cst.ImportAlias, cst.ImportFrom)
        if isinstance(parent, known) and not inner:
            continue
        if isinstance(node, cst.Name) and not work.source.is_reference(node):
            continue
        if isinstance(parent, cst.Annotation | cst.Subscript | cst.SubscriptElement | cst.Index | cst.BinaryOperation):
            continue
        if isinstance(parent, cst.AssignTarget) and _is_none(work.source.parents[parent]):
            continue  # GradScaler = None, where torch has none
        work.block(node, f"{work.source.code(node)} under another name", "call it where it is used")


def _is_none(assign: cst.CSTNode) -> bool:
    return isinstance(assign, cst.Assign) and dotted(assign.value) == "None"


def _note_others(work: Work) -> None:
    """Say which losses a scaler scales that other code makes."""
    said = set[str]()
    for call in work.source.scaled():
        name = dotted(call.func).rpartition(".")[0]
        if name in said:
            continue
        said.add(name)
        write = "make a session there, and migrate that file together with this one, or use `--to compat`"
        work.note(call, f"{name} scales losses, and is made by code that is not here", write)


def _note_custom(work: Work) -> None:
    for node in work.source.nodes:
        if isinstance(node, cst.Decorator):
            called = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
            if work.source.meaning(called) in CUSTOM:
                write = "it works as it is; for every framework, decorate the function with `ua.amp_function`"
                work.note(node, dotted(called), write)


__all__ = [
    "NAME",
    "OLD_IMPORTS",
    "SCALERS",
    "block_wrapped",
    "by_choice",
    "by_factory",
    "by_given_optimizer",
    "ended_before_backward",
    "found",
    "plan",
]
