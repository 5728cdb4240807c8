"""A kind of region under another name, ``region = autocast if flag else nullcontext``: chosen where it is entered."""

from __future__ import annotations

import libcst as cst

from ..edits import Edits
from ..nodes import dotted, walk
from ..report import Finding
from ..source import Source
from .arguments import AUTOCAST
from .nothings import does_nothing, is_own


def by_choice(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which ``with region():`` is ``with autocast() if flag else nullcontext():``."""
    edits = Edits()
    for assign in source.of(cst.Assign):
        name = dotted(assign.targets[0].target)
        made, scope = _choice(source, assign.value), source.scope(assign)
        if made is None or len(assign.targets) != 1:
            continue
        if any(one is not assign and source.scope(one) is scope for one in source.assigns(name)):
            continue
        inside = [use for use in source.uses(name) if source.scope(use) is scope or source.inside(use, scope)]
        uses = [use for use in inside if use is not assign.targets[0].target]
        given = _takes_arguments(source, assign.value)
        calls = [call for use in uses for call in [source.parents[use]] if _enters(source, call, given=given)]
        if uses and len(calls) == len(uses) and all(_sees(source, assign, call) for call in calls):
            edits.statement(source.statement(assign))
            for call in calls:
                assert isinstance(call, cst.Call)
                edits.expression(call, _entering(made, ", ".join(source.code(arg).rstrip(", ") for arg in call.args)))
    return edits.apply(source.module).bytes if edits else source.text, []


def _choice(source: Source, value: cst.BaseExpression) -> tuple[str, str, str] | None:
    """Return the parts of ``autocast if flag else nullcontext``, with a flag that may be asked again."""
    if not isinstance(value, cst.IfExp) or any(isinstance(one, cst.Call | cst.NamedExpr) for one in walk(value)):
        return None
    both = (value.body, value.orelse)
    regions = [one for one in both if source.meaning(one) in AUTOCAST]
    nothing = [one for one in both if does_nothing(source, one)]
    if len(regions) != 1 or len(nothing) != 1:
        return None
    first, test, second = (source.code(one) for one in (value.body, value.test, value.orelse))
    return first, test, second


def _entering(choice: tuple[str, str, str], arguments: str) -> str:
    first, test, second = choice
    return f"{first}({arguments}) if {test} else {second}({arguments})"


def _takes_arguments(source: Source, value: cst.BaseExpression) -> bool:
    """Whether the context that does nothing takes what an autocast takes, as one of the file's own may."""
    return isinstance(value, cst.IfExp) and any(is_own(source, one) for one in (value.body, value.orelse))


def _enters(source: Source, call: cst.CSTNode, *, given: bool) -> bool:
    """Whether a call is what a ``with`` statement enters, with arguments only if they may be ``given``."""
    return (
        isinstance(call, cst.Call) and isinstance(source.parents.get(call), cst.WithItem) and (given or not call.args)
    )


def _sees(source: Source, assign: cst.Assign, call: cst.CSTNode) -> bool:
    """Whether the flag means where a region is entered what it meant where it was chosen."""
    scope = source.scope(assign)
    if scope is not source.scope(call):
        return False
    assert isinstance(assign.value, cst.IfExp)
    names = {one.value for one in walk(assign.value.test) if isinstance(one, cst.Name)}
    given = [one for name in names for one in source.assigns(name) if source.scope(one) is scope]
    return all(source.order[one] < source.order[assign] for one in given)
