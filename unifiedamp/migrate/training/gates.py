"""Steps that come after several micro-batches, and clipping after each of these, which moves to the step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from ..nodes import targets, walk
from ..source import Source, Statement
from .dataflow import names_in
from .regions import enclosing


class Guard(NamedTuple):
    """An ``if`` around a clipping, and whether the clipping is in its body."""

    node: cst.If
    holds: bool


class Gates:
    """The steps of a file that conditions keep to each so many micro-batches.

    Args:
        source: the file.
        steps: its steps.
        backwards: the statements that its losses go backward in.
    """

    def __init__(self, source: Source, steps: Sequence[cst.Call], backwards: Sequence[Statement]) -> None:
        self._source, self._steps, self._backwards = source, steps, backwards

    def step_behind(self, call: cst.CSTNode) -> Statement | None:
        """Return the step's statement where it is taken after several micro-batches and ``call`` after each."""
        for statement, gate in self._gated.get(self._source.scope(call), ()):
            if self._source.in_block(call, self._source.block(statement)) is None:
                outer = self._source.in_block(call, self._source.block(gate))
                if outer is not None and not self._same_gate(outer, gate):
                    return statement
        return None

    def guards(self, call: cst.Call, step: Statement) -> list[Guard] | None:
        """Return the conditions that a call is under and a step is not, the outermost first; None where the call or
        a condition uses what only exists where the call stands, or may not be evaluated later.
        """
        source = self._source
        gate = enclosing(source, step)
        outer = None if gate is None else source.in_block(call, source.block(gate))
        if outer is None:
            return None
        found: list[Guard] = []
        node: cst.CSTNode = call
        for above in source.above(call):
            if isinstance(above, cst.If):
                found.insert(0, Guard(above, source.inside(node, above.body)))
            elif isinstance(above, cst.For | cst.While | cst.Try):
                return None
            node = above
            if above is outer:
                break
        used = names_in(source, call).union(*(names_in(source, one.node.test) for one in found))
        pure = all(_is_pure(one.node.test) for one in found)
        return found if pure and not used & targets(outer) else None

    def emptied(self, statement: Statement) -> Statement:
        """Return the outermost statement that holds nothing but ``statement``."""
        while True:
            block = self._source.block(statement)
            owner = self._source.parents.get(block)
            alone = [one for one in block.body if isinstance(one, Statement)] == [statement]
            if not (alone and isinstance(owner, cst.If) and owner.orelse is None):
                return statement
            if isinstance(self._source.parents.get(owner), cst.If):
                return statement
            statement = owner

    @functools.cached_property
    def _gated(self) -> dict[cst.CSTNode, list[tuple[Statement, cst.If]]]:
        """Return function -> its steps that are taken after several micro-batches, and the conditions for that."""
        places = {self._source.block(place) for place in self._backwards}
        found: dict[cst.CSTNode, list[tuple[Statement, cst.If]]] = {}
        for step in self._steps:
            statement = self._source.statement(step)
            gate = enclosing(self._source, statement)
            if isinstance(gate, cst.If) and self._source.block(statement) not in places and _counts(gate.test):
                found.setdefault(self._source.scope(step), []).append((statement, gate))
        return found

    def _same_gate(self, outer: Statement, gate: cst.If) -> bool:
        return isinstance(outer, cst.If) and self._source.code(outer.test) == self._source.code(gate.test)


def joined(chains: Sequence[Sequence[Guard]]) -> list[list[Guard]]:
    """Return the conditions under which the same call stands, without those of which both branches have it."""
    left = [list(chain) for chain in chains]
    for one in left:
        for other in left:
            place = _opposite(one, other)
            if place is not None:
                rest = [chain for chain in left if chain is not one and chain is not other]
                return joined([*rest, [*one[:place], *one[place + 1 :]]])
    return left


def condition(source: Source, chain: Sequence[Guard]) -> str:
    """Return the code of a chain's conditions, empty where there is none."""
    tests = []
    for node, holds in chain:
        code = " ".join(source.code(node.test).split())
        plain = isinstance(node.test, cst.Name | cst.Attribute)
        tests.append(code if holds else f"not {code}" if plain else f"not ({code})")
    if len(tests) > 1:
        tests = [f"({test})" if " or " in test or " if " in test else test for test in tests]
    return " and ".join(tests)


def _opposite(one: Sequence[Guard], other: Sequence[Guard]) -> int | None:
    """Return the place of the one ``if`` whose two branches two chains are in, where all else is the same."""
    if len(one) != len(other):
        return None
    differ = [place for place, (mine, its) in enumerate(zip(one, other, strict=True)) if mine != its]
    place = differ[0] if differ else None
    if place is None or one[place].node is not other[place].node:
        return None
    same = all(_code(one[i]) == _code(other[i]) for i in differ[1:])
    return place if same else None


def _code(guard: Guard) -> tuple[str, bool]:
    return cst.Module([]).code_for_node(guard.node.test), guard.holds


def _counts(test: cst.BaseExpression) -> bool:
    """Whether a condition counts micro-batches."""
    return any(isinstance(one, cst.Modulo) for one in walk(test))


def _is_pure(test: cst.BaseExpression) -> bool:
    return not any(isinstance(one, cst.Call | cst.NamedExpr | cst.Await) for one in walk(test))
