"""Where a loss is computed: the statements, from the model's call to the loss, that go under ``amp.autocast()``."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, walk
from ..source import Block, Source, Statement
from ..work import Work
from .aliases import Aliases, Key
from .alone import Alone
from .banned import Banned
from .dataflow import Dataflow, filled_by, names_in
from .values import WRAPPERS

NO_FORWARD = (
    "train", "eval", "parameters", "named_parameters", "state_dict", "load_state_dict", "zero_grad", "no_sync", "to",
    "cuda", "cpu", "half", "float", "children", "modules", "named_modules", "apply", "register_buffer", "share_memory",
    "require_grad", "requires_grad_", "backward", "step", "append", "update", "item", "save", "save_pretrained",
)  # fmt: skip
_NO_FORWARD_OF = ("len", "print", "isinstance", "id", "type", "hasattr", "getattr", "next", "iter", "list", "str")
_FORWARD = re.compile(r"forward|loss|objective|logits|train\w*_step", re.IGNORECASE)
_DEPTH = 4


class Range(NamedTuple):
    """Statements of one block, by place, under one header."""

    first: int
    last: int
    header: str


class Uncovered(NamedTuple):
    """A loss that no model was found for; the function, and its parameters, through which other files give it."""

    loss: cst.CSTNode
    function: cst.FunctionDef | None
    given: Sequence[str]


class Regions:
    """Collects regions of a file, and puts them in its edits.

    Args:
        work: takes the changes.
        aliases: who is who in the file.
        models: the groups of the models.
        ends: statements at which one step ends and the next begins; no region holds one.
        there: ``with`` statements that are regions already.
        session: node → what the session is called there; None where it cannot be seen.
        models_alone: the old API cast models alone, and not what is computed from their outputs.

    Attributes:
        uncovered: the losses, as the functions that compute them name them, for which no call of a model was found.
        covered: the statements that are in regions, once ``emit`` has put them there.
    """

    def __init__(
        self,
        work: Work,
        aliases: Aliases,
        models: set[Key | None],
        ends: Iterable[cst.CSTNode],
        there: Iterable[cst.CSTNode] = (),
        session: Callable[[cst.CSTNode], str | None] | None = None,
        *,
        models_alone: bool = False,
    ) -> None:
        self._there, self._session = set(there), session
        self._banned = Banned(work.source, aliases)
        self._work, self._source, self._aliases = work, work.source, aliases
        self._models = models - {None}
        self._alone = Alone(work, aliases, self._models, self._forwards) if models_alone else None
        self._ending = _around(work.source, ends)
        self._ranges: dict[Block, dict[Range, None]] = {}
        self._facts: dict[Statement, Dataflow] = {}
        self._first: dict[Block, dict[str, int]] = {}
        self._computing: dict[cst.CSTNode, bool] = {}
        self.uncovered: list[Uncovered] = []
        self.covered: set[cst.CSTNode] = set(self._there)

    def cover(self, loss: cst.CSTNode, place: Statement, header: str, depth: int = 0) -> bool:
        """Put what computes ``loss`` before ``place`` in a region; return whether a model's call was found."""
        needed = names_in(self._source, loss)
        found, position = False, place
        while not found:
            block = self._source.block(position)
            body = statements(block)
            found = self._slice(block, body, body.index(position), needed, header)
            above = enclosing(self._source, position)
            if above is None:
                break
            position = above
        scope = self._source.scope(place)
        attributes = self._attributes(needed, scope, header) if depth < _DEPTH else False
        if found or attributes:
            return True
        if depth < _DEPTH and isinstance(scope, cst.FunctionDef):
            before = len(self.uncovered)
            covered = self._callers(scope, loss, needed, header, depth)
            if covered or len(self.uncovered) > before:
                return covered
        self.uncovered.append(Uncovered(loss, *self._brought(scope, loss)))
        return False

    def emit(self) -> None:
        """Put the regions in the file's edits; those that touch become one, and one inside another goes."""
        bodies = {block: statements(block) for block in self._ranges}
        whole = {s for block, found in self._ranges.items() for r in found for s in bodies[block][r.first : r.last + 1]}
        for block, found in self._ranges.items():
            if any(above in whole for above in self._source.above(block)):
                continue
            body = bodies[block]
            for first, last, header in self._joined(body, found):
                self._work.edits.wrap(body[first], body[last], header)
                self.covered.update(body[first : last + 1])

    def computes(self, node: cst.CSTNode) -> bool:
        """Whether a model is called in a node, itself or in a function of this file, or handed to a function."""
        if node not in self._computing:
            self._computing[node] = False  # a function that calls itself
            self._computing[node] = any(self._forwards(one) for one in walk(node) if isinstance(one, cst.Call))
        return self._computing[node]

    def _held(self, statement: Statement) -> bool:
        """Whether each call of a model in a statement stands in a region of the old code."""
        calls = [one for one in walk(statement) if isinstance(one, cst.Call) and self._forwards(one)]
        return all(any(above in self._there for above in self._source.above(call)) for call in calls)

    # -- inside --------------------------------------------------------------------------------------------------

    def _forwards(self, call: cst.Call) -> bool:
        func = call.func
        last = dotted(func).rpartition(".")[2]
        if last in WRAPPERS or last in ("initialize", "prepare"):
            return False
        if self._aliases.of(func) in self._models:
            return True
        if last[:1].isupper():
            return False
        if isinstance(func, cst.Subscript) and self._aliases.of(func.value) in self._models:
            return True
        if isinstance(func, cst.Attribute):
            if func.attr.value in NO_FORWARD:
                return False
            if any(self._aliases.of(part) in self._models for part in prefixes(func.value)):
                return True
        if dotted(func) in _NO_FORWARD_OF or "clip_grad" in dotted(func) or "save" in dotted(func):
            return False
        if any(self._aliases.of(arg.value) in self._models for arg in call.args):
            return True
        functions = self._aliases.reached.functions(call)
        return any(self.computes(one.body) for one in functions) or (
            all(map(_is_open, functions)) and _is_forward(call)
        )

    def _slice(self, block: Block, body: list[Statement], place: int, needed: set[str], header: str) -> bool:
        """Find, backwards from ``place``, what computes ``needed``, which grows; return whether a model is called."""
        found = False
        flagged: list[int] = []
        first = self._first_targets(block, body)
        for index in range(place - 1, -1, -1):
            if not any(first.get(name, place) <= index for name in needed):
                break
            if body[index] in self._ending:
                # An earlier step may have computed what this loss uses too, such as a GAN's generated batch.
                found = self._keep(block, body, flagged, header) or found
                flagged = []
                continue
            flow = self._dataflow(body[index])
            if flow.targets & needed and not isinstance(body[index], cst.FunctionDef | cst.ClassDef):
                flagged.append(index)
                needed -= flow.replaced
                needed |= flow.used
        return self._keep(block, body, flagged, header) or found

    def _dataflow(self, statement: Statement) -> Dataflow:
        if statement not in self._facts:
            self._facts[statement] = Dataflow.of(self._source, statement)
        return self._facts[statement]

    def _first_targets(self, block: Block, body: list[Statement]) -> dict[str, int]:
        """Return name -> the place of the first statement of a block that assigns it."""
        if block not in self._first:
            first = self._first[block] = {}
            for place, statement in enumerate(body):
                for name in self._dataflow(statement).targets:
                    first.setdefault(name, place)
        return self._first[block]

    def _keep(self, block: Block, body: list[Statement], flagged: list[int], header: str) -> bool:
        calling = [index for index in flagged if self.computes(body[index])]
        if not calling:
            return False
        if all(self._held(body[index]) for index in calling):
            return True
        if self._session is not None and f"with {self._session(body[min(calling)])}.autocast(" not in header:
            return False  # another function, where the session is not known
        if self._alone is not None:
            calling, places = self._alone.split(body, calling)
            for inner, place in places:
                self._ranges.setdefault(inner, {})[Range(place, place, header)] = None
        if calling:
            last = max(calling) if self._alone is not None else self._before_banned(body, flagged, max(calling))
            self._ranges.setdefault(block, {})[Range(min(calling), last, header)] = None
        return True

    def _before_banned(self, body: list[Statement], flagged: list[int], calling: int) -> int:
        """Return the last place of a region: before what autocast forbids, where no model is called from there on."""
        behind = [index for index in sorted(flagged) if index > calling]
        kept = [calling, *itertools.takewhile(lambda index: not any(self._banned.within(body[index])), behind)]
        return kept[-1]

    def _attributes(self, needed: set[str], scope: cst.CSTNode, header: str) -> bool:
        """Cover where other methods compute the attributes that the loss is computed from."""
        found = False
        for text in sorted(one for one in needed if one.startswith("self.")):
            for node, value in self._written(text):
                other = self._source.scope(node)
                init = isinstance(other, cst.FunctionDef) and other.name.value == "__init__"
                if other is scope or init or not self.computes(value):
                    continue
                statement = self._source.statement(node)
                block = self._source.block(statement)
                body = statements(block)
                if statement not in self._ending:
                    found = self._keep(block, body, [body.index(statement)], header) or found
        return found

    def _written(self, text: str) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Yield the lines that write an attribute, models left out, with what each puts there."""
        for assign in self._source.assigns(text):
            if self._aliases.of(assign.targets[0].target) not in self._models:
                yield assign, assign.value
        for call in self._fills.get(text, ()):
            yield call, call

    @functools.cached_property
    def _fills(self) -> dict[str, list[cst.Call]]:
        """Variable -> the calls that put something into it."""
        found: dict[str, list[cst.Call]] = {}
        for call in self._source.of(cst.Call):
            found.setdefault(filled_by(self._source, call), []).append(call)
        return found

    def _callers(self, scope: cst.FunctionDef, loss: cst.CSTNode, needed: set[str], header: str, depth: int) -> bool:
        """Cover the losses, or what they are computed from, that callers hand to a function."""
        own = names_in(self._source, loss)
        given = [
            self._given(call, arg, header, depth, is_loss=name in own)
            for call in self._calls_from_outside(scope)
            for arg, function, name in self._aliases.reached.arguments(call)
            if function is scope and name in needed
        ]
        return bool(given) and all(given)

    def _given(self, call: cst.Call, arg: cst.Arg, header: str, depth: int, *, is_loss: bool) -> bool:
        before = len(self.uncovered)
        if self.cover(arg.value, self._source.statement(call), header, depth + 1):
            return True
        own = self.computes(arg.value) and self._own_line(call, arg, header)
        if own or not is_loss:
            del self.uncovered[before:]
        return own

    def _brought(self, scope: cst.CSTNode, loss: cst.CSTNode) -> tuple[cst.FunctionDef | None, Sequence[str]]:
        """Return the function of which a loss is a parameter that no call here fills, and the parameter."""
        if not isinstance(scope, cst.FunctionDef):
            return None, ()
        used = names_in(self._source, loss)
        taken = [name for name in self._aliases.reached.positional(scope) if name in used]
        calls = self._calls_from_outside(scope)
        filled = {name for call in calls for _, _, name in self._aliases.reached.arguments(call)}
        return (scope, taken) if taken and not filled & set(taken) else (None, ())

    def _calls_from_outside(self, scope: cst.FunctionDef) -> list[cst.Call]:
        """Return a function's calls, without those in itself, as of another object's method of that name."""
        return [call for call in self._aliases.reached.calls(scope) if not self._source.inside(call, scope)]

    def _own_line(self, call: cst.Call, arg: cst.Arg, header: str) -> bool:
        """A loss computed in the argument itself gets a line before the call."""
        statement = self._source.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            return False
        self._work.edits.before(statement, f"{header}\n    loss_to_scale = {self._source.code(arg.value)}")
        self._work.edits.expression(arg.value, "loss_to_scale")
        return True

    def _joined(self, body: list[Statement], found: Iterable[Range]) -> Iterator[Range]:
        made: list[Range] = []
        for one in sorted(found):
            if made and one.header == made[-1].header and self._touch(body, made[-1], one):
                made[-1] = Range(made[-1].first, max(made[-1].last, one.last), one.header)
            else:
                made.append(one)
        yield from made

    def _touch(self, body: list[Statement], one: Range, other: Range) -> bool:
        return other.first <= one.last + 1 and not any(s in self._ending for s in body[one.last + 1 : other.first])


def statements(block: Block) -> list[Statement]:
    """Return the statements of a block."""
    return [s for s in block.body if isinstance(s, Statement)]


def enclosing(source: Source, statement: cst.CSTNode) -> Statement | None:
    """Return the statement of the next outer block that holds ``statement``; None at a function's or file's top."""
    block = source.block(statement)
    for one in source.above(block):
        if isinstance(one, cst.FunctionDef | cst.ClassDef):
            return None
        if isinstance(one, Statement) and isinstance(source.parents.get(one), cst.IndentedBlock | cst.Module):
            return one
    return None


def prefixes(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield ``a.b.c``, ``a.b`` and ``a`` of the first."""
    yield node
    while isinstance(node, cst.Attribute):
        node = node.value
        yield node


def _is_forward(call: cst.Call) -> bool:
    """Whether a method of ``self``, which a subclass or another file writes, computes a loss by its name."""
    root, _, name = dotted(call.func).rpartition(".")
    return root == "self" and bool(_FORWARD.search(name))


def _is_open(function: cst.FunctionDef) -> bool:
    """Whether a method is for subclasses to write: it raises NotImplementedError, or says nothing."""
    lines = [one for one in walk(function.body) if isinstance(one, cst.BaseSmallStatement)]
    return all(isinstance(one, cst.Raise | cst.Pass | cst.Expr) for one in lines)


def _around(source: Source, nodes: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
    return {one for node in nodes for one in (node, *source.above(node)) if isinstance(one, Statement)}
