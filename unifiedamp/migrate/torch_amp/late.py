"""Names in the line that makes a session that get their value only behind it."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted, parameters, walk
from ..source import Source, Statement


def assigned_late(source: Source, code: cst.CSTNode, place: cst.CSTNode) -> list[cst.Assign]:
    """Return the first assignments of names in ``code`` that nothing gives a value before.

    Args:
        source: the file.
        code: an expression, or a statement's value.
        place: where it stands.
    """
    scope, limit = source.scope(place), source.order[place]
    found: list[cst.Assign] = []
    for name in dict.fromkeys(_names(code)):
        made = source.assigns(name)
        here = [one for one in made if source.scope(one) is scope]
        if not here or any(source.order[one] < limit for one in here) or _is_bound_otherwise(source, name, scope):
            continue
        if not name.startswith("self.") or len(here) == len(made):
            found.append(min(here, key=source.order.__getitem__))
    return found


def _names(code: cst.CSTNode) -> list[str]:
    """Return the variables and the attributes of ``self`` in an expression."""
    inner = {one.attr for one in walk(code) if isinstance(one, cst.Attribute)}
    inner |= {one.keyword for one in walk(code) if isinstance(one, cst.Arg) and one.keyword is not None}
    found = [one.value for one in walk(code) if isinstance(one, cst.Name) and one not in inner]
    texts = [dotted(one) for one in walk(code) if isinstance(one, cst.Attribute)]
    return [*found, *(text for text in texts if text.startswith("self.") and text.count(".") == 1)]


def _is_bound_otherwise(source: Source, name: str, scope: cst.FunctionDef | cst.Module) -> bool:
    """Whether a parameter, an import, a class or something else than an assignment binds a name."""
    last = name.rpartition(".")[2]
    if name in source.imports or (isinstance(scope, cst.FunctionDef) and name in parameters(scope)):
        return True
    named = {item.name.value for one in source.of(cst.Global) if source.scope(one) is scope for item in one.names}
    loops: list[cst.CSTNode] = [one.target for one in source.of(cst.For) if source.scope(one) is scope]
    loops += [one.name for one in source.of(cst.AsName) if source.scope(one) is scope]
    if name in named or any(name == dotted(each) for target in loops for each in walk(target)):
        return True
    in_class = [one for one in source.of(cst.ClassDef) for each in _own(one) if last in each]
    return name != last and bool(in_class)


def _own(owner: cst.ClassDef) -> list[set[str]]:
    """Return the names that the lines of a class bind: attributes and methods."""
    found: list[set[str]] = []
    for one in owner.body.body:
        if isinstance(one, cst.FunctionDef):
            found.append({one.name.value})
        elif isinstance(one, cst.SimpleStatementLine):
            targets = [each.target for small in one.body if isinstance(small, cst.Assign) for each in small.targets]
            targets += [small.target for small in one.body if isinstance(small, cst.AnnAssign)]
            found.append({dotted(each) for each in targets})
    return found


def place_behind(source: Source, statement: Statement, late: list[cst.Assign], used: int) -> Statement | None:
    """Return the statement, in the same block, behind which all late names are bound; None where it is used before."""
    block, last = source.block(statement), max(late, key=source.order.__getitem__)
    place = source.statement(last)
    return place if source.parents.get(place) is block and source.order[last] < used else None
