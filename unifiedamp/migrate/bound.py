"""Whether the migrated text's session is there wherever it is used: bound on every path that leads to a use."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .nodes import dotted, parameters, walk
from .source import Source
from .training.values import bindings

Reason = tuple[int, str]


def unbound_sessions(source: Source) -> Iterator[Reason]:
    """Yield (line, reason) for each use of a session that a path reaches without making one."""
    made: dict[str, list[cst.Assign]] = {}
    for assign in source.of(cst.Assign):
        if isinstance(assign.value, cst.Call) and source.meaning(assign.value.func) == "unifiedamp.Amp":
            made.setdefault(dotted(assign.targets[0].target), []).append(assign)
    for name, assigns in made.items():
        if "." not in name:
            yield from _unbound(source, name, assigns)


def _unbound(source: Source, name: str, assigns: list[cst.Assign]) -> Iterator[Reason]:
    for use in source.uses(name):
        scope = source.scope(use)
        if isinstance(source.parents[use], cst.NameItem):  # global amp
            continue
        if any(use is target.target for assign in assigns for target in assign.targets):
            continue
        owner = _binder(source, name, scope)
        if owner is not None and all(source.scope(assign) is not owner for assign in assigns):
            if not _is_handed(source, name, owner):
                yield source.line(use), f"{name} is {owner.name.value}'s own here, and not the session"
            continue
        here = [assign for assign in assigns if source.scope(assign) is scope]
        if here and not any(_comes_before(source, assign, use) for assign in here):
            yield source.line(use), f"the session, {name}, is made under a condition, and used here without it too"
        elif not here and not any(_seen_outside(source, name, assign, scope) for assign in assigns):
            yield source.line(use), f"{name} is made under a condition, or where this function does not see it"


def _binder(source: Source, name: str, scope: cst.CSTNode) -> cst.FunctionDef | None:
    """Return the innermost function from ``scope`` outwards that has a name as a parameter, or assigns it."""
    around = [scope, *source.above(scope)]
    functions = [one for one in around if isinstance(one, cst.FunctionDef)]
    return next((one for one in functions if _binds(source, name, one)), None)


def _binds(source: Source, name: str, function: cst.FunctionDef) -> bool:
    declared: list[cst.Global | cst.Nonlocal] = [*source.of(cst.Global), *source.of(cst.Nonlocal)]
    if any(item.name.value == name for one in declared if source.scope(one) is function for item in one.names):
        return False
    if any(isinstance(one, cst.Param) and one.name.value == name for one in walk(function.params)):
        return True
    return any(name in bindings(one) for one in walk(function) if source.scope(one) is function)


def _is_handed(source: Source, name: str, function: cst.FunctionDef) -> bool:
    """Whether callers in this file hand a function what they call the same: the session, as its parameter."""
    if name not in parameters(function):
        return False
    called = function.name.value
    calls = [call for call in source.of(cst.Call) if dotted(call.func).rpartition(".")[2] == called]
    return any(dotted(arg.value) == name for call in calls for arg in call.args)


def _comes_before(source: Source, assign: cst.Assign, use: cst.CSTNode) -> bool:
    """Whether the assignment is in a block around the use, and earlier; ``with`` blocks are run always."""
    block = source.block(source.statement(assign))
    while isinstance(with_ := source.parents.get(block), cst.With) and "suppress" not in source.code(with_.items[0]):
        block = source.block(with_)
    return source.order[assign] < source.order[use] and source.in_block(use, block) is not None


def _seen_outside(source: Source, name: str, assign: cst.Assign, scope: cst.CSTNode) -> bool:
    """Whether a function sees a session that is made outside it, whatever branches were taken."""
    outer = source.scope(assign)
    if not _always(source, assign):
        return False
    if source.inside(scope, outer):
        return True
    leaves = [one for one in source.of(cst.Return) if source.scope(one) is outer]
    if any(source.order[one] < source.order[assign] for one in leaves):
        return False
    shared = any(
        dotted(item.name) == name for g in source.of(cst.Global) if source.scope(g) is outer for item in g.names
    )
    return shared and isinstance(outer, cst.FunctionDef) and _called_always(source, outer)


def _always(source: Source, node: cst.CSTNode) -> bool:
    """Whether nothing between a node and its function decides if it runs, the main guard aside."""
    scope = source.scope(node)
    for one in source.above(node):
        if one is scope:
            return True
        decides = cst.If | cst.For | cst.While | cst.Try | cst.ExceptHandler | cst.Else | cst.IfExp | cst.Lambda
        if isinstance(one, decides) and not (isinstance(one, cst.If) and "__main__" in source.code(one.test)):
            return False
    return True


def _called_always(source: Source, function: cst.FunctionDef, depth: int = 4) -> bool:
    """Whether a function is called in this file without a condition; a method, whether its class is."""
    name = function.name.value
    if name == "__init__":
        classes = [one for one in source.above(function) if isinstance(one, cst.ClassDef)]
        name = classes[0].name.value if classes else name
    calls = [call for call in source.of(cst.Call) if dotted(call.func).rpartition(".")[2] == name]
    if not calls:
        return True  # the file that calls it is not this one
    return any(_always(source, c) or not depth for c in calls)
