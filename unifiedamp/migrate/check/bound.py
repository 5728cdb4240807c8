"""Whether a session exists on every path to its uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ..nodes import dotted, targets, walk
from ..torch_amp.late import assigned_late
from .facts import Facts, prepared_by
from .needed import needed_anyway

_WRITE = 'a line on each other path that makes the session, with policy="float32"'
_BEFORE = "it in front of the line that makes the GradScaler, or the session"
_LEAVE = ("sys.exit", "exit", "quit", "os._exit")


def unbound(facts: Facts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield the uses of a session that some path reaches without one."""
    names = {dotted(one) for one in facts.made if "." not in dotted(one)}
    modules = [each.module for each in facts.source.files.values()] or [facts.source.module]
    for scope in [*modules, *(n for n in facts.source.nodes if isinstance(n, cst.FunctionDef))]:
        local = {name for name in names if _assigned(facts, scope, name)}
        if local:
            walker = _Paths(facts, local)
            walker.block(_body(scope), set(_parameters(scope)))
            for node in walker.found:
                yield node, f"{facts.source.code(node)} may not exist here", _WRITE


def unknown(facts: Facts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield the uses of a session in functions that do not know it."""
    source = facts.source
    everywhere = {item.name.value for one in source.of(cst.Global) for item in one.names} | set(source.imports)
    for name in sorted({dotted(one) for one in facts.made if "." not in dotted(one)} - everywhere):
        for use in source.uses(name):
            call = source.parents.get(source.parents[use])
            around = [source.root(use), *_functions(facts, use)]
            if isinstance(call, cst.Call) and not any(facts.aliases.scopes.binds(scope, name) for scope in around):
                yield use, f"{name}, the session, is not known here", "it as a parameter, or keep it as an attribute"


def unmade(facts: Facts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield what is prepared where some path has not made it yet."""
    for call in facts.calls("prepare"):
        scope = facts.source.scope(call)
        given = {one for one in prepared_by(call) if isinstance(one, cst.Name)}
        names = {one.value for one in given if _made_in(facts, one.value, scope)}
        walker = _Paths(facts, names)
        walker.block(_body(scope), set(_parameters(scope)))
        for node in walker.found:
            if node in given and not (isinstance(node, cst.Name) and needed_anyway(facts.source, node, call)):
                write = "name each model and optimizer, and prepare them where they are made"
                yield node, f"{facts.source.code(node)} may not exist where it is prepared", write


def late(facts: Facts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield the lines that give what a session is made of its value, behind the session."""
    for made in facts.made:
        assign = facts.source.parents[facts.source.parents[made]]
        assert isinstance(assign, cst.Assign)
        for one in assigned_late(facts.source, assign.value, assign):
            name = facts.source.code(one.targets[0].target).strip()
            yield one, f"{name} is assigned behind the session, whose policy needs it", _BEFORE


def left_out(facts: Facts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield the sessions that a class makes on some paths through ``__init__`` alone, and uses in other methods."""
    for made in facts.made:
        scope, name = facts.source.scope(made), dotted(made)
        if not isinstance(scope, cst.FunctionDef) or scope.name.value != "__init__":
            continue
        bound = _Paths(facts, {name}).block(_body(scope), set(_parameters(scope)))
        if bound is None or name in bound:
            continue
        owner = facts.aliases.scopes.class_of(scope)
        elsewhere = [use for use in facts.source.uses(name) if facts.source.scope(use) is not scope]
        if any(facts.aliases.scopes.class_of(one) is owner for use in elsewhere for one in _functions(facts, use)):
            yield made, f"{name} may not exist behind __init__", _WRITE


def _functions(facts: Facts, node: cst.CSTNode) -> list[cst.FunctionDef]:
    return [above for above in facts.source.above(node) if isinstance(above, cst.FunctionDef)]


def _made_in(facts: Facts, name: str, scope: cst.CSTNode) -> bool:
    """Whether lines of a function, or the turns of a loop, give a name its value."""
    made: list[cst.CSTNode] = [*facts.source.assigns(name)]
    made += [loop for loop in facts.source.of(cst.For) if dotted(loop.target) == name]
    return any(facts.source.scope(one) is scope for one in made)


def _assigned(facts: Facts, scope: cst.CSTNode, name: str) -> bool:
    return any(facts.source.scope(one) is scope for one in facts.made if dotted(one) == name)


def _parameters(scope: cst.CSTNode) -> list[str]:
    return (
        [p.name.value for p in walk(scope.params) if isinstance(p, cst.Param)]
        if isinstance(scope, cst.FunctionDef)
        else []
    )


def _body(scope: cst.CSTNode) -> Sequence[cst.CSTNode]:
    if isinstance(scope, cst.Module):
        return scope.body
    return scope.body.body if isinstance(scope, cst.FunctionDef) else ()


class _Paths:
    """Follows the paths of one function, and notes uses of names that are not surely assigned."""

    def __init__(self, facts: Facts, names: set[str]) -> None:
        self._facts, self._names = facts, names
        self.found: list[cst.CSTNode] = []

    def block(self, body: Sequence[cst.CSTNode], bound: set[str] | None) -> set[str] | None:
        """Return what is surely bound behind a block; None where nothing comes behind it."""
        for statement in body:
            if bound is None:
                return None
            bound = self._statement(statement, bound)
        return bound

    def _statement(self, node: cst.CSTNode, bound: set[str]) -> set[str] | None:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            return bound
        if isinstance(node, cst.If):
            self._look(node.test, bound)
            other = self._orelse(node.orelse, bound)
            return _both(self.block(node.body.body, set(bound)), other)
        if isinstance(node, cst.For | cst.While):
            self._look(node.iter if isinstance(node, cst.For) else node.test, bound)
            target = {dotted(one) for one in walk(node.target)} if isinstance(node, cst.For) else set[str]()
            self.block(node.body.body, bound | target)
            return self._orelse(node.orelse, bound)
        if isinstance(node, cst.With):
            for item in node.items:
                self._look(item, bound)
            return self.block(node.body.body, set(bound))
        if isinstance(node, cst.Try):
            return self._try(node, bound)
        self._look(node, bound)
        if isinstance(node, cst.SimpleStatementLine) and any(map(_leaves, node.body)):
            return None
        return bound | (targets(node) & self._names)

    def _try(self, node: cst.Try, bound: set[str]) -> set[str] | None:
        done = self.block(node.body.body, set(bound))
        if node.orelse is not None and done is not None:
            done = self.block(node.orelse.body.body, done)
        for handler in node.handlers:
            done = _both(done, self.block(handler.body.body, set(bound)))
        if node.finalbody is not None:
            self.block(node.finalbody.body.body, set(bound))
        return done

    def _orelse(self, orelse: cst.CSTNode | None, bound: set[str]) -> set[str] | None:
        if isinstance(orelse, cst.If):
            return self._statement(orelse, set(bound))
        return self.block(orelse.body.body, set(bound)) if isinstance(orelse, cst.Else) else set(bound)

    def _look(self, node: cst.CSTNode, bound: set[str]) -> None:
        for one in walk(node):
            if not isinstance(one, cst.Name) or one.value not in self._names - bound:
                continue
            bare = isinstance(self._facts.source.parents[one], cst.AssignTarget | cst.NameItem | cst.Param)
            if not bare and self._facts.source.is_reference(one):
                self.found.append(one)


def _both(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _leaves(small: cst.CSTNode) -> bool:
    if isinstance(small, cst.Return | cst.Raise | cst.Continue | cst.Break):
        return True
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and dotted(small.value.func) in _LEAVE
