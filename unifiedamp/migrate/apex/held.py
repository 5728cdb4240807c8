"""Apex's module as a value: kept in ``args.amp`` or another name, or passed to functions, which get the session."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ..edits import Edits
from ..nodes import dotted
from ..report import Finding
from ..source import Source
from ..training.aliases import Aliases
from ..work import Work
from .settings import SAME

_WRITE = "write amp itself where it is used, and run migrate again"


def by_name(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which ``args.amp.scale_loss`` is ``amp.scale_loss``, where the file sets ``args.amp``."""
    edits = Edits()
    for assign in source.of(cst.Assign):
        target = assign.targets[0].target
        held = len(assign.targets) == 1 and source.meaning(assign.value) == "apex.amp"
        if not held or not dotted(target) or not _is_one(source, dotted(target)):
            continue
        uses = [use for use in source.uses(dotted(target)) if not isinstance(source.parents[use], cst.AssignTarget)]
        around = [source.parents[use] for use in uses]
        if uses and all(isinstance(one, cst.Attribute) for one in around):
            edits.statement(source.statement(assign))
            for use in uses:
                edits.expression(use, source.code(assign.value))
    return edits.apply(source.module).bytes if edits else source.text, []


def _is_one(source: Source, name: str) -> bool:
    """Whether a name stands for Apex's module alone, wherever the file binds it."""
    taken = name in source.imports or any(param.name.value == name for param in source.of(cst.Param))
    return not taken and all(source.meaning(one.value) == "apex.amp" for one in source.assigns(name))


def given(source: Source, aliases: Aliases) -> set[cst.FunctionDef]:
    """Return the functions of the file with a parameter of the module's name that is given the module."""
    found = set[cst.FunctionDef]()
    for use in _values(source):
        for function, name in _taken_by(source, aliases, use):
            if name == dotted(use):
                found.add(function)
    return found


def hand_on(work: Work, aliases: Aliases, takers: Collection[cst.FunctionDef]) -> None:
    """Pass the session where the module was passed to functions of this file; refuse what else is done with it.

    Args:
        work: takes the changes.
        aliases: who is who.
        takers: the functions whose parameter becomes the session, by its name.
    """
    source = work.source
    for function in takers:
        for param in (one for one in source.of(cst.Param) if source.scope(one) is function):
            if source.meaning(param.name) == "apex.amp":
                work.edits.expression(param.name, work.names.amp)
    for use in _values(source):
        if work.edits.covers(source, use):
            continue
        code, parent = source.code(use), source.parents[use]
        if source.scope(use) in takers and not isinstance(parent, cst.Arg):
            work.edits.expression(use, work.names.amp)  # the parameter, which may be None
            continue
        taken = _taken_by(source, aliases, use)
        if taken and all(each in takers or _only_states(source, aliases, name, each) for each, name in taken):
            work.edits.expression(use, work.names.amp)
            continue
        call = source.parents[parent] if isinstance(parent, cst.Arg) else None
        if isinstance(call, cst.Call) and not taken:
            what = f"{code}, Apex's module, is passed to {dotted(call.func) or 'code'}, which is not in this file"
            write = "pass the session, if that code calls state_dict and load_state_dict alone, or change it too"
        else:
            line = source.first_line(use)
            what, write = f"{code}, Apex's module, is used as a value in `{line}`", _WRITE
        work.block(use, what, write)


def _values(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield the uses of the module in which none of its functions is called, and which bind nothing."""
    for node in (*source.of(cst.Name), *source.of(cst.Attribute)):
        if source.meaning(node) != "apex.amp":
            continue
        if isinstance(node, cst.Name) and not source.is_reference(node):
            continue
        if isinstance(source.parents[node], cst.Attribute | cst.AssignTarget | cst.NameItem | cst.Param | cst.Del):
            continue
        if not any(isinstance(above, cst.Import | cst.ImportFrom) for above in source.above(node)):
            yield node


def _taken_by(source: Source, aliases: Aliases, use: cst.BaseExpression) -> list[tuple[cst.FunctionDef, str]]:
    """Return the functions and their parameters that are given the module."""
    arg = source.parents[use]
    call = source.parents.get(arg)
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call):
        return []
    return [(function, name) for one, function, name in aliases.reached.arguments(call) if one is arg]


def _only_states(source: Source, aliases: Aliases, name: str, function: cst.FunctionDef) -> bool:
    """Whether a function asks a parameter for its state alone, which a session has too."""
    uses = [use for use in source.uses(name) if aliases.scopes.binding(use, name) is function]
    around = [one for one in (source.parents[use] for use in uses) if not isinstance(one, cst.Param)]
    return all(isinstance(one, cst.Attribute) and one.attr.value in SAME for one in around)
