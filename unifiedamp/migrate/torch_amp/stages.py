"""When optimizers are made: again by one function, between two trainings, or by a class before its scaler."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, walk
from ..source import Source, Statement
from ..training.aliases import Aliases
from ..work import Work
from .scaler import Scaler

_LOOPS = (cst.For, cst.While)


class Stages:
    """The lines of one function that make optimizers for separate stages of training.

    Args:
        work: the file.
        aliases: who is who.
        scaler: what the session replaces.
        place: the statement behind which the session exists.
        scope: the function.
        assigns: its lines that make optimizers.

    Attributes:
        later: those that are prepared where they stand: trainings come before them, or a loop makes them anew.
    """

    def __init__(
        self,
        work: Work,
        aliases: Aliases,
        scaler: Scaler,
        place: Statement,
        scope: cst.CSTNode,
        assigns: Sequence[cst.Assign],
    ) -> None:
        self._source, self._aliases, self._place, self._scope = work.source, aliases, place, scope
        self._home = work.source.scope(scaler.first.assign) is scope
        used = [use for use in scaler.uses if isinstance(work.source.parents[use], cst.Attribute)]
        self._users = {work.source.scope(use) for use in used}
        calls = [call for call in work.source.of(cst.Call) if work.source.scope(call) is scope]
        self._trainings: list[cst.CSTNode] = [call for call in calls if self._trains(call)]
        self._trainings += [use for use in used if work.source.scope(use) is scope and _steps(work, use)]
        self.later = [one for one in assigns if self._is_later(one, assigns)]
        if self.later and any(_counts(work, use) for use in used):
            code = " ".join(work.source.code(self.later[-1]).split())
            raise work.stop(self.later[-1], f"`{code}` makes an optimizer again, and steps are taken after several "
                            "micro-batches, of which some may be left", "`amp.discard_step(optimizer)` before it, and "
                            "`model, optimizer = amp.prepare(model, optimizer)` behind it, by hand")  # fmt: skip

    def behind(self, assign: cst.Assign, models: Sequence[str]) -> Statement:
        """Return the statement behind which what a line makes is prepared: models may be wrapped in between."""
        source, order = self._source, self._source.order
        statement = source.statement(assign)
        ends = min((order[one] for one in self._trainings if order[one] > order[assign]), default=len(source.nodes))
        wraps = [one for name in models for one in source.assigns(name) if order[assign] < order[one] < ends]
        block = source.block(statement)
        found = [source.statement(one) for one in wraps if source.parents.get(source.statement(one)) is block]
        return max([statement, *found], key=order.__getitem__)

    def _is_later(self, assign: cst.Assign, assigns: Sequence[cst.Assign]) -> bool:
        source, order = self._source, self._source.order
        if self._home and (order[assign] < order[self._place] or source.inside(assign, self._place)):
            return False
        loops = [
            above for above in source.above(assign) if isinstance(above, _LOOPS) and source.scope(above) is self._scope
        ]
        loops = [loop for loop in loops if not source.inside(self._place, loop)]
        if any(source.inside(one, loop) for loop in loops for one in self._trainings):
            return True
        names = {dotted(target.target) for target in assign.targets}
        first = [one for one in assigns if names & {dotted(target.target) for target in one.targets}]
        starts = min(order[one] for one in first)
        ends = max(order[one] for one in first)
        return any(starts < order[one] < ends for one in self._trainings)

    def _trains(self, call: cst.Call, depth: int = 3) -> bool:
        """Whether a call leads to a function that uses the scaler."""
        for function in self._aliases.reached.functions(call) if depth else ():
            if function in self._users and function is not self._scope:
                return True
            if any(isinstance(one, cst.Call) and self._trains(one, depth - 1) for one in walk(function.body)):
                return True
        return False


def _steps(work: Work, use: cst.BaseExpression) -> bool:
    """Whether a use of the scaler scales a loss or steps."""
    around = work.source.parents[use]
    return isinstance(around, cst.Attribute) and around.attr.value in ("scale", "step")


def _counts(work: Work, use: cst.BaseExpression) -> bool:
    """Whether a step is under a condition that counts micro-batches."""
    tests = [above.test for above in work.source.above(use) if isinstance(above, cst.If)]
    return _steps(work, use) and any(isinstance(one, cst.Modulo) for test in tests for one in walk(test))


def comes_first(work: Work, aliases: Aliases, scaler: Scaler, made: cst.Assign) -> bool:
    """Whether a class makes an optimizer in one method before it makes its scaler in another."""
    source = work.source
    home, method = source.scope(scaler.first.assign), source.scope(made)
    if not isinstance(home, cst.FunctionDef) or not isinstance(method, cst.FunctionDef):
        return False
    if aliases.scopes.class_of(home) is None or aliases.scopes.class_of(method) is not aliases.scopes.class_of(home):
        return False
    scalers = _reached(source, aliases, home, scaler.first.assign)
    optimizers = _reached(source, aliases, method, made)
    together = [(one, other) for place, one in optimizers for beside, other in scalers if place is beside]
    if not together:
        return any(isinstance(place, cst.FunctionDef) and place.name.value == "__init__" for place, _ in optimizers)
    return any(one < other for one, other in together)


def _reached(
    source: Source, aliases: Aliases, function: cst.FunctionDef, line: cst.CSTNode, depth: int = 3
) -> list[tuple[cst.CSTNode, int]]:
    """Return the functions in which a line runs, its own and those that call it, with the place in each."""
    found: list[tuple[cst.CSTNode, int]] = [(function, source.order[line])]
    for call in aliases.reached.calls(function) if depth else ():
        caller = source.scope(call)
        if isinstance(caller, cst.FunctionDef) and caller is not function:
            found += _reached(source, aliases, caller, call, depth - 1)
        else:
            found.append((caller, source.order[call]))
    return found
