"""Where models are called in functions of the file: there go the regions of an API that casts models alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from ..nodes import walk
from ..source import Block, Statement
from ..work import Work
from .aliases import Aliases, Key


class Alone:
    """Follows a statement into the functions that call models and then compute on, which Apex's O2 left in float32.

    Args:
        work: takes notes.
        aliases: who is who in it.
        models: the groups of the models.
        forwards: whether a call computes with a model.
    """

    def __init__(
        self, work: Work, aliases: Aliases, models: set[Key | None], forwards: Callable[[cst.Call], bool]
    ) -> None:
        self._work, self._aliases, self._models, self._forwards = work, aliases, models, forwards
        self._entered, self._noted = set[cst.FunctionDef](), set[cst.Call]()

    def split(self, body: Sequence[Statement], calling: Sequence[int]) -> tuple[list[int], list[tuple[Block, int]]]:
        """Return the places in ``body`` of statements that call models, and block and place of the others' calls."""
        left: list[int] = []
        inner: list[tuple[Block, int]] = []
        for index in calling:
            places = self._places(body[index])
            if places is None:
                left.append(index)
                self._note_handed(body[index])
            inner += places or ()
        return left, inner

    def _places(self, statement: Statement) -> list[tuple[Block, int]] | None:
        """Return block and place of each statement that calls a model in the functions that ``statement`` calls.

        None where the statement calls a model itself, or hands it to code that is not here.
        """
        calls = [one for one in walk(statement) if isinstance(one, cst.Call) and self._forwards(one)]
        functions = [self._functions(call) for call in calls]
        if not all(functions):
            return None
        return [place for each in functions for function in each for place in self._within(function)]

    def _note_handed(self, statement: Statement) -> None:
        """Say where code that is not here gets a model: what it computes on is in the region too."""
        for call in (one for one in walk(statement) if isinstance(one, cst.Call) and self._forwards(one)):
            given = [arg.value for arg in call.args if self._aliases.of(arg.value) in self._models]
            if not given or call in self._noted or self._is_models_own(call) or self._functions(call):
                continue
            self._noted.add(call)
            code = self._work.source.code
            what = f"{code(call.func)} gets {code(given[0])}, and computes on from its outputs in the region too"
            write = "Apex cast the model alone: there, put `with amp.autocast():` around the model's calls instead"
            self._work.note(call, what, write)

    def _is_models_own(self, call: cst.Call) -> bool:
        """Whether a call is of a model, or of one of its methods or parts."""
        func: cst.BaseExpression = call.func
        while self._aliases.of(func) not in self._models:
            if not isinstance(func, cst.Attribute | cst.Subscript):
                return False
            func = func.value
        return True

    def _functions(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions of this file that a call which is not a model's own reaches."""
        if self._is_models_own(call):
            return []
        return [one for one in self._aliases.reached.functions(call) if self._computes(one.body)]

    def _within(self, function: cst.FunctionDef) -> Iterator[tuple[Block, int]]:
        if function not in self._entered:
            self._entered.add(function)
            yield from self._of_block(function.body)

    def _of_block(self, block: cst.BaseSuite) -> Iterator[tuple[Block, int]]:
        if not isinstance(block, cst.IndentedBlock):
            return
        inner = [one for one in block.body if isinstance(one, Statement)]
        for place, statement in enumerate(inner):
            if self._computes(statement):
                yield from self._of_statement(block, place, statement)

    def _of_statement(self, block: Block, place: int, statement: Statement) -> Iterator[tuple[Block, int]]:
        blocks = [one for one in walk(statement) if isinstance(one, cst.IndentedBlock) and self._computes(one)]
        further = self._places(statement) if isinstance(statement, cst.SimpleStatementLine) else None
        if further is not None:
            yield from further
        elif blocks:
            for one in blocks:
                if not any(self._work.source.inside(one, other) for other in blocks if other is not one):
                    yield from self._of_block(one)
        else:
            yield block, place

    def _computes(self, node: cst.CSTNode) -> bool:
        return any(self._forwards(one) for one in walk(node) if isinstance(one, cst.Call))
