"""Where an autocast region is entered, and under which condition it is on."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, parameters, walk
from ..source import Source
from .arguments import AUTOCAST, enabled_in, enabled_of
from .nothings import does_nothing
from .substituted import given_values, substituted

_CHOOSE = "write `with amp.autocast(enabled=flag):`, and what the other context does on separate lines"


def entered(source: Source, call: cst.Call) -> list[cst.WithItem]:
    """Return the items of the ``with`` statements that enter a region: itself, by choice, or kept in a variable."""
    place = choice(source, call) or call
    parent = source.parents[place]
    if isinstance(parent, cst.WithItem):
        return [parent]
    if isinstance(parent, cst.Return):
        known = _only_region(source, parent) and not _given_settings(source, call, maker(source, parent))
        return _entered_by(source, maker(source, parent)) if known else []
    name = dotted(parent.targets[0].target) if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else ""
    kept = "." not in name or _is_kept(source, call, name)
    if not name or not kept or not all(_alike(source, call, one) for one in _others(source, parent)):
        return []
    items = [source.parents[use] for use in source.uses(name) if not isinstance(source.parents[use], cst.AssignTarget)]
    found = [item for item in items if isinstance(item, cst.WithItem)]
    return found if len(found) == len(items) else []


def _is_kept(source: Source, call: cst.Call, name: str) -> bool:
    """Whether a region is an attribute, ``self.ctx``, that the methods of its class alone use."""
    root, _, last = name.partition(".")
    uses = [one for one in source.of(cst.Attribute) if one.attr.value == last]
    owner = _class_around(source, call)
    return (
        root == "self"
        and owner is not None
        and all(dotted(one) == name and _class_around(source, one) is owner for one in uses)
    )


def _class_around(source: Source, node: cst.CSTNode) -> cst.ClassDef | None:
    return next((above for above in source.above(node) if isinstance(above, cst.ClassDef)), None)


def maker(source: Source, given: cst.Return) -> cst.FunctionDef:
    """Return the function that returns a region."""
    scope = source.scope(given)
    assert isinstance(scope, cst.FunctionDef)
    return scope


def _only_region(source: Source, given: cst.Return) -> bool:
    """Whether a function does nothing but return this region, or a context that does nothing."""
    scope = source.scope(given)
    if not isinstance(scope, cst.FunctionDef) or scope.decorators:
        return False
    returned = [one.value for one in source.of(cst.Return) if source.scope(one) is scope and one is not given]
    lines = [one for one in source.of(cst.SimpleStatementLine) if source.scope(one) is scope]
    says = [one for one in lines if not isinstance(one.body[0], cst.Return)]
    return all(_is_nothing(source, one) for one in returned) and all(isinstance(one.body[0], cst.Expr) for one in says)


def _given_settings(source: Source, call: cst.Call, function: cst.FunctionDef) -> bool:
    """Whether a region's dtype or device is a parameter of the function that returns it, with a value for each call."""
    enabled, names = enabled_in(source, call), set(parameters(function)) - {"self"}
    settings = [arg.value for arg in call.args if arg.value is not enabled]
    return any(isinstance(one, cst.Name) and one.value in names for value in settings for one in walk(value))


def _entered_by(source: Source, function: cst.FunctionDef) -> list[cst.WithItem]:
    """Return the items that enter what a function returns, where all its uses are such."""
    name = function.name.value
    uses = [one for one in (*source.of(cst.Attribute), *source.uses(name)) if dotted(one).rpartition(".")[2] == name]
    calls = [source.parents[one] for one in uses]
    seen = [one for one in calls if isinstance(one, cst.Call) and given_values(function, one) is not None]
    items = [source.parents.get(call) for call in seen]
    found = [item for item in items if isinstance(item, cst.WithItem)]
    return found if len(found) == len(uses) else []


def _others(source: Source, given: cst.CSTNode) -> list[cst.Assign]:
    """Return the other assignments of the variable that a region is kept in."""
    assert isinstance(given, cst.Assign)
    return [one for one in source.assigns(dotted(given.targets[0].target)) if one is not given]


def _alike(source: Source, call: cst.Call, other: cst.Assign) -> bool:
    """Whether another branch keeps the same region in a variable, or a context that does nothing."""
    if source.scope(other) is not source.scope(call) or not source.exclusive(other, call):
        return False
    value = other.value
    if not isinstance(value, cst.Call) or source.meaning(value.func) not in AUTOCAST:
        return _is_nothing(source, value)
    dtypes = [argument(one, "dtype", 1) for one in (call, value)]
    same = len({None if one is None else source.code(one) for one in dtypes}) == 1
    return same and enabled_of(source, call) == enabled_of(source, value)


def _is_nothing(source: Source, node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Call) and does_nothing(source, node.func)


def choice(source: Source, call: cst.Call) -> cst.IfExp | None:
    """Return ``autocast() if flag else nullcontext()``."""
    parent = source.parents[call]
    if not isinstance(parent, cst.IfExp):
        return None
    other = parent.orelse if parent.body is call else parent.body
    return parent if _is_nothing(source, other) else None


def not_entered(source: Source, call: cst.Call) -> tuple[str, str]:
    """Return why a region is nowhere entered in a way that can be followed, and what to write."""
    parent = source.parents[call]
    if isinstance(parent, cst.IfExp) and choice(source, call) is None:
        other = parent.orelse if parent.body is call else parent.body
        if isinstance(other, cst.Call) and source.meaning(other.func) not in AUTOCAST:
            return f"{source.code(other)}, which may do something, in the place of an autocast", _CHOOSE
    return f"`{source.code(call)}` outside a with statement", "write `with amp.autocast():` where the region is entered"


def switch_of(source: Source, call: cst.Call) -> str | None:
    """Return what says whether a region is on: ``enabled=``, or the condition it is chosen by."""
    own, chosen = enabled_of(source, call), choice(source, call)
    tests = [] if chosen is None else [source.code(chosen.test) if chosen.body is call else _not(source, chosen.test)]
    parent = source.parents[chosen or call]
    if isinstance(parent, cst.Return):
        tests += [_branch(source, one, parent) for one in _ifs(source, parent)]
        tests += [_not(source, one.test) for one in _left_before(source, parent)]
    elif isinstance(parent, cst.Assign):
        nothing = [one for one in _others(source, parent) if _is_nothing(source, one.value)]
        around = [one for one in _ifs(source, parent) if any(source.inside(other, one) for other in nothing)]
        tests += [_branch(source, one, parent) for one in around]
    tests = list(dict.fromkeys([*tests, *([] if own is None else [own])]))
    return tests[0] if len(tests) == 1 else " and ".join(f"({test})" for test in tests) or None


def switch_at(source: Source, call: cst.Call, item: cst.WithItem) -> str | None:
    """Return what says whether a region is on where it is entered, with the arguments of the call that returns it."""
    switch, parent = switch_of(source, call), source.parents[choice(source, call) or call]
    if switch is None or not isinstance(parent, cst.Return) or not isinstance(item.item, cst.Call):
        return switch
    values = given_values(maker(source, parent), item.item)
    return substituted(switch, values) if values else switch


def _ifs(source: Source, node: cst.CSTNode) -> list[cst.If]:
    return [above for above in source.above(node) if isinstance(above, cst.If)]


def _branch(source: Source, around: cst.If, node: cst.CSTNode) -> str:
    """Return the condition of the branch that a node is in."""
    return source.code(around.test) if source.inside(node, around.body) else _not(source, around.test)


def _not(source: Source, test: cst.BaseExpression) -> str:
    return f"not ({source.code(test)})"


def _left_before(source: Source, given: cst.Return) -> list[cst.If]:
    """Return the conditions under which a function has returned before."""
    scope = source.scope(given)
    tests = [one for one in source.of(cst.If) if source.scope(one) is scope and not source.inside(given, one)]
    return [one for one in tests if source.order[one] < source.order[given]]
