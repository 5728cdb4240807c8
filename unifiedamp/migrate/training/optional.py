"""Functions that start AMP, and that a program may leave out: without AMP it would have no session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from ..nodes import walk
from ..work import Work
from .aliases import Aliases

_AMP_WORDS = re.compile(r"amp|apex|fp_?16|float_?16|half|mixed|precision|scaler", re.IGNORECASE)
_WRITE = 'make the session always, with policy=... if AMP is on else "float32", where model and optimizer are made'


def refuse_left_out(work: Work, aliases: Aliases, made: Sequence[cst.Call], scaled: Sequence[cst.Call]) -> None:
    """Refuse lines that start AMP in a function which is not called without AMP, while steps are taken without it.

    Args:
        work: takes the refusals.
        aliases: who is who.
        made: the calls that start AMP.
        scaled: the calls that scale losses.
    """
    source, calls = work.source, dict[cst.CSTNode, list[cst.Call]]()
    for call in source.of(cst.Call):
        calls.setdefault(source.scope(call), []).append(call)
    ready = {aliases.scopes.class_of(one) for one in map(source.scope, made) if _is_init(one)} - {None}
    ways = _Ways(work)
    for call in made:
        scope = source.scope(call)
        inner = _called_from(calls, aliases, scope)
        others = [one for one in scaled if source.scope(one) not in inner]
        others = [one for one in others if aliases.scopes.class_of(source.scope(one)) not in ready]
        gates = [gate for one in others for gate in ways.gates(one)]
        if not gates or not isinstance(scope, cst.FunctionDef) or _Calls(work, aliases, gates).surely(scope):
            continue
        if not aliases.reached.calls(scope) and _is_under_a_flag(work, call, scope):
            continue  # who calls it calls it always: it asks for the flag itself
        work.block(call, f"{scope.name.value} starts AMP and may not be called: losses go backward without it too",
                   _WRITE)  # fmt: skip


def _is_init(scope: cst.CSTNode) -> bool:
    return isinstance(scope, cst.FunctionDef) and scope.name.value == "__init__"


def _called_from(
    calls: Mapping[cst.CSTNode, Sequence[cst.Call]], aliases: Aliases, scope: cst.CSTNode
) -> set[cst.CSTNode]:
    """Return a function and those that its calls may reach: they run once it has started AMP."""
    found, todo = {scope}, [scope]
    while todo:
        reached = {one for call in calls.get(todo.pop(), ()) for one in aliases.reached.functions(call)} - found
        todo += reached
        found |= reached
    return found


def _is_under_a_flag(work: Work, call: cst.Call, scope: cst.FunctionDef) -> bool:
    for above in work.source.above(call):
        if above is scope:
            break
        if isinstance(above, cst.If | cst.IfExp):
            return True
    return any(arg.keyword is not None and arg.keyword.value == "enabled" for arg in call.args)


class _Ways:
    """The ways around a scaled loss: the ``if`` statements that send a loss backward without scaling it."""

    def __init__(self, work: Work) -> None:
        self._source = work.source
        self._known: dict[cst.CSTNode, bool] = {}

    def gates(self, call: cst.Call) -> Iterator[cst.If]:
        """Yield the conditions that choose between a scaled loss and a plain one."""
        source, node = self._source, call
        for above in source.above(call):
            if isinstance(above, cst.FunctionDef):
                return
            if isinstance(above, cst.If):
                other = above.orelse if source.inside(node, above.body) else above.body
                if other is not None and self._goes_backward(other):
                    yield above
            for one in above.body if isinstance(above, cst.IndentedBlock) else ():
                if isinstance(one, cst.If) and source.order[one] < source.order[call] and self._leaves(one, call):
                    yield one

    def _leaves(self, one: cst.If, call: cst.Call) -> bool:
        """Whether an ``if`` sends a loss backward and leaves, before the scaled one."""
        last = one.body.body[-1] if not self._source.inside(call, one) else None
        small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
        return isinstance(small, cst.Return | cst.Continue) and self._goes_backward(one.body)

    def _goes_backward(self, node: cst.CSTNode) -> bool:
        if node not in self._known:
            calls = [one.func for one in walk(node) if isinstance(one, cst.Call)]
            named = [one.attr.value for one in calls if isinstance(one, cst.Attribute)]
            self._known[node] = "backward" in named
        return self._known[node]


class _Calls:
    """Whether functions are called whatever a flag for AMP says."""

    def __init__(self, work: Work, aliases: Aliases, gates: Sequence[cst.If]) -> None:
        self._source, self._reached = work.source, aliases.reached
        self._tests = {self._source.code(gate.test).strip() for gate in gates}

    def surely(self, function: cst.FunctionDef) -> bool:
        """Whether a function that starts AMP is."""
        return _is_init(function) or self._called(function, {function})

    def _called(self, function: cst.FunctionDef, seen: set[cst.CSTNode]) -> bool:
        return any(
            not self._is_chosen(call) and self._runs(self._source.scope(call), seen)
            for call in self._reached.calls(function)
        )

    def _runs(self, scope: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
        """Whether code runs with AMP off too; what no call of this file reaches is called from outside."""
        if not isinstance(scope, cst.FunctionDef) or _is_init(scope):
            return True
        if scope in seen:
            return False
        seen.add(scope)
        return not self._reached.calls(scope) or self._called(scope, seen)

    def _is_chosen(self, call: cst.Call) -> bool:
        """Whether a condition around a call asks whether AMP is on."""
        for above in self._source.above(call):
            if isinstance(above, cst.FunctionDef):
                return False
            if isinstance(above, cst.If | cst.IfExp) and self._asks(self._source.code(above.test).strip()):
                return True
        return False

    def _asks(self, test: str) -> bool:
        return test in self._tests or bool(_AMP_WORDS.search(test))
