"""Functions that scale a loss for an optimizer which only their callers know: it becomes their parameter."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import libcst as cst

from ..edits import Edits
from ..nodes import dotted
from ..report import Finding
from ..source import Source
from ..training.aliases import Aliases
from ..training.handover import with_argument, with_parameter


def by_given_optimizer(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which such functions are given the optimizer, and a note for each."""
    scaled = source.scaled()
    scalers = {dotted(call.func).rpartition(".")[0] for call in scaled}
    steps = [call for call in source.methods("step") if dotted(call.func).rpartition(".")[0] in scalers]
    names = {dotted(call.args[0].value) if len(call.args) == 1 else "" for call in steps}
    name = names.pop() if len(names) == 1 else ""
    if not name.isidentifier():
        return source.text, []
    edits, notes, aliases = Edits(), list[Finding](), Aliases(source)
    for function in dict.fromkeys(map(source.scope, scaled)):
        if not isinstance(function, cst.FunctionDef) or _knows(source, aliases, function, name):
            continue
        calls = aliases.reached.calls(function)
        callers = {source.scope(call) for call in calls}
        if not calls or not callers <= {source.scope(step) for step in steps}:
            continue
        if not all(aliases.scopes.binds(one, name) for one in callers) or not _is_only_called(source, function, calls):
            continue
        edits.change(function.params, functools.partial(with_parameter, name=name))
        for call in calls:
            edits.change(call, functools.partial(with_argument, name=name))
        what = f"{function.name.value} takes {name}, for which it scales a loss"
        notes.append(Finding(source.line(function), what, f"give it {name} where other files call or override it"))
    return edits.apply(source.module).bytes if edits else source.text, notes


def _knows(source: Source, aliases: Aliases, function: cst.FunctionDef, name: str) -> bool:
    """Whether a function, or what is around it, has the name."""
    around = [above for above in source.above(function) if isinstance(above, cst.FunctionDef | cst.Module)]
    return any(aliases.scopes.binds(one, name) for one in (function, *around)) or bool(function.decorators)


def _is_only_called(source: Source, function: cst.FunctionDef, calls: list[cst.Call]) -> bool:
    """Whether a function is the only one of its name, and is called wherever it is named."""
    name = function.name.value
    same = [one for one in source.of(cst.FunctionDef) if one.name.value == name]
    return same == [function] and all(source.parents[use] in calls for use in _named(source, name))


def _named(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    yield from (one for one in source.of(cst.Attribute) if one.attr.value == name)
    for use in source.uses(name):
        if isinstance(use, cst.Name) and source.is_reference(use):
            yield use
