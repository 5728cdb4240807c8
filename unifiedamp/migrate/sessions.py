"""The session that replaces an old API: the line that makes it, where it goes, and the line that prepares objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import libcst as cst

from .edits import Edits
from .nodes import dotted, walk
from .source import Source, Statement
from .training.values import bindings
from .work import Names, Work

LONGEST = 110


def session_line(names: Names, target: str, backend: str, **arguments: str | None) -> str:
    """Return ``target = ua.Amp("backend", ...)``; arguments are code, None leaves one out."""
    parts = [f'"{backend}"', *(f"{key}={value}" for key, value in arguments.items() if value is not None)]
    line = f"{target} = {names.ua}.Amp({', '.join(parts)})"
    if len(line) <= LONGEST:
        return line
    return f"{target} = {names.ua}.Amp(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def prepare_line(target: str, models: Sequence[str], optimizers: Sequence[str]) -> str:
    """Return ``model, optimizer = amp.prepare(model, optimizer)``."""
    objects = ", ".join([*models, *optimizers])
    line = f"{objects} = {target}.prepare({objects})"
    return line if len(line) <= LONGEST else f"{objects} = {target}.prepare(\n    {objects}\n)"


def prepare_in(source: Source, scope: cst.CSTNode, target: str, objects: Sequence[str]) -> str:
    """Return the line that prepares objects in a function: only names that it binds get what is returned."""
    given = ", ".join(objects)
    bound = [name if binds(source, scope, name) else "_" for name in objects]
    kept = f"{', '.join(bound)} = " if set(bound) != {"_"} else ""
    line = f"{kept}{target}.prepare({given})"
    return line if len(line) <= LONGEST else f"{kept}{target}.prepare(\n    {given}\n)"


def binds(source: Source, scope: cst.CSTNode, name: str) -> bool:
    """Whether a function, or the file, may give a name a new value: it binds it, or declares it global."""
    if "." in name or isinstance(scope, cst.Module):
        return True
    declared = [item.name for one in source.of(cst.Global) if source.scope(one) is scope for item in one.names]
    return name in map(dotted, declared) or (isinstance(scope, cst.FunctionDef) and source.bound_in(name, scope))


def dynamic(names: Names, **settings: str | None) -> str:
    """Return the code of a dynamic loss scale; ``"dynamic"`` where every setting is the default."""
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    return f"{names.ua}.DynamicLossScale({', '.join(given)})" if given else '"dynamic"'


def behind(source: Source, made: Statement, others: Iterable[cst.CSTNode]) -> Statement:
    """Return the statement in the block of ``made``, the last of ``made`` and those that hold one of ``others``."""
    block = source.block(made)
    found = [made, *filter(None, (source.in_block(other, block) for other in others))]
    return max(found, key=lambda statement: source.order[statement])


def models_of(source: Source, value: cst.CSTNode, scope: cst.CSTNode, depth: int = 3) -> list[str]:
    """Return the models whose ``.parameters()`` an expression takes, through variables of the same scope."""
    found: list[str] = []
    for node in walk(value):
        if isinstance(node, cst.Attribute) and node.attr.value in ("parameters", "named_parameters"):
            found += owners(source, dotted(node.value), scope)
        elif isinstance(node, cst.Name) and depth and node in source.parents and source.is_reference(node):
            for assign in source.assigns(node.value):
                if source.scope(assign) is scope and assign.value is not value:
                    found += models_of(source, assign.value, scope, depth - 1)
    return [name for name in dict.fromkeys(found) if name]


def owners(source: Source, name: str, scope: cst.CSTNode, depth: int = 3) -> list[str]:
    """Return the models that a part belongs to: ``model`` of ``model.head``, also through a loop over its parts."""
    parts = name.split(".")
    owner = ".".join(parts[:2]) if parts[0] == "self" else parts[0]
    loops: list[cst.For | cst.CompFor] = [*source.of(cst.For), *source.of(cst.CompFor)]
    over = [one.iter for one in loops if dotted(one.target) == owner and source.scope(one) is scope] if depth else []
    found = [each for one in over for part in _looped(one) for each in owners(source, part, scope, depth - 1)]
    return found or [owner]


def _looped(over: cst.BaseExpression) -> list[str]:
    """Return the names that a loop goes over: of ``[a, b]`` both, of ``enumerate(model.layers)`` that."""
    if isinstance(over, cst.List | cst.Tuple):
        return [dotted(element.value) for element in over.elements if dotted(element.value)]
    if isinstance(over, cst.Call):
        inner = over.func.value if isinstance(over.func, cst.Attribute) else None
        given = [inner] if inner is not None else [arg.value for arg in over.args[:1]]
        return [name for each in given if each is not None for name in _looped(each)]
    return [dotted(over)] if dotted(over) else []


def share(work: Work, made: cst.CSTNode, users: Iterable[cst.CSTNode]) -> None:
    """Let every function see a session made inside one: declare its name global there, if others use it."""
    scope = work.source.scope(made)
    path = work.source.path(made)
    here = [user for user in users if work.source.path(user) == path]  # others are handed it
    if not isinstance(scope, cst.FunctionDef) or all(work.source.inside(user, scope) for user in here):
        return
    declare_global(work.edits, scope, work.names.amp)


def declare_global(edits: Edits, function: cst.FunctionDef, name: str) -> None:
    """Declare a name global in a function."""
    first = next(s for s in function.body.body if isinstance(s, Statement))
    (edits.after if _is_docstring(first) else edits.before)(first, f"global {name}")


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    one = statement.body[0]
    return isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString | cst.ConcatenatedString)


def free_name(source: Source, wanted: str, takers: Collection[cst.FunctionDef] = ()) -> str:
    """Return ``wanted``, or ``amp_session`` where the file calls a flag, a parameter or an attribute so.

    Args:
        source: the file.
        wanted: the name.
        takers: functions whose parameter of this name is the session.
    """
    taken = wanted == "amp" and any(_takes(source, node, takers) for node in source.nodes)
    return "amp_session" if taken else wanted


def _takes(source: Source, node: cst.CSTNode, takers: Collection[cst.FunctionDef]) -> bool:
    parent = source.parents.get(node)
    if isinstance(node, cst.Param):
        return node.name.value == "amp" and source.scope(node) not in takers
    if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.For | cst.NamedExpr):
        if not {dotted(node.target), *bindings(node)} & {"amp", "self.amp"}:
            return False
        return not (isinstance(parent, cst.Assign) and dotted(parent.value) == "None")
    if isinstance(node, cst.AsName):
        return isinstance(parent, cst.WithItem | cst.ExceptHandler) and "amp" in bindings(node)
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return node.name.value == "amp"
    return isinstance(node, cst.Attribute) and dotted(node) == "self.amp"
