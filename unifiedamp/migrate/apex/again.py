"""``amp.initialize`` of what another function initializes too, as a trainer does before it loads amp's state."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import conjuncts
from ..source import Source
from ..work import Work


def again(source: Source, call: cst.Call, starts: Sequence[cst.Call]) -> bool:
    """Whether a method initializes, with the same settings, what the constructor of its class has initialized under
    the same flag: there a session has the objects already.
    """
    return any(
        _is_constructor(source, one)
        and _code(source, one) == _code(source, call)
        and _conditions(source, one) <= _conditions(source, call)
        for one in _alike(source, call, starts)
    )


def refuse_conditions(work: Work, call: cst.Call, starts: Sequence[cst.Call]) -> None:
    """Refuse a second ``amp.initialize`` of the same objects under another condition: where the condition is false,
    the old code kept what it had, and the new code would switch to a session in float32.

    Raises:
        CannotMigrate: another condition decides.
    """
    mine = _conditions(work.source, call)
    for one in _alike(work.source, call, starts):
        if not mine <= _conditions(work.source, one) and not again(work.source, one, starts):
            own = " and ".join(sorted(mine - _conditions(work.source, one)))
            what = f"amp.initialize again under `{own}`, of what line {work.source.line(one)} initializes"
            raise work.stop(call, what, "make the session once, in the function that comes first")


def _alike(source: Source, call: cst.Call, starts: Sequence[cst.Call]) -> list[cst.Call]:
    """Return the calls in other methods of the same class that assign the same attributes."""
    given, scope, owner = _targets(source, call), source.scope(call), _class(source, call)
    if owner is None or "self." not in given:
        return []
    others = [one for one in starts if source.scope(one) is not scope and _class(source, one) is owner]
    return [one for one in others if _targets(source, one) == given]


def _targets(source: Source, call: cst.Call) -> str:
    assign = source.assignment(call)
    return "" if assign is None else " ".join(source.code(assign.targets[0].target).split())


def _class(source: Source, call: cst.Call) -> cst.ClassDef | None:
    return next((one for one in source.above(call) if isinstance(one, cst.ClassDef)), None)


def _is_constructor(source: Source, call: cst.Call) -> bool:
    scope = source.scope(call)
    return isinstance(scope, cst.FunctionDef) and scope.name.value == "__init__"


def _code(source: Source, call: cst.Call) -> str:
    return "".join(source.code(call).split()).replace(",)", ")")


def _conditions(source: Source, call: cst.Call) -> set[str]:
    """Return the conditions that hold where a call is made."""
    return {
        " ".join(source.code(part).split())
        for above in source.above(call)
        if isinstance(above, cst.If) and source.inside(call, above.body) and source.scope(above) is source.scope(call)
        for part in conjuncts(above.test)
    }
