"""``amp.initialize`` becomes the session's line and ``prepare``, in float32 where a flag kept it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import libcst as cst

from ..nodes import argument, conjuncts, dotted, keywords, none_of, targets
from ..sessions import LONGEST, prepare_line, session_line
from ..source import Source, Statement
from ..training.dataflow import names_in
from ..training.flags import Guard, condition, empty, guards, lift, otherwise
from ..training.values import moved
from ..work import Work
from .again import again, refuse_conditions
from .questions import answered
from .settings import bracketed, settings
from .tried import outside

_LISTS = ("models", "optimizers", "nets", "networks", "opts")


class Start(NamedTuple):
    """A call of ``initialize``: the expressions of its models and optimizers, those that it gives included."""

    call: cst.Call
    models: Sequence[cst.BaseExpression]
    optimizers: Sequence[cst.BaseExpression]


class _Prepare(NamedTuple):
    """The line that prepares.

    Attributes:
        code: the line where ``initialize`` stands.
        bare: the same without moves of models (``model.to(device)``).
        moves: lines that move them.
        into: the variables that get the prepared objects; none where they are returned.
        objects: the objects, without moves.
    """

    code: str
    bare: str
    moves: Sequence[str] = ()
    into: Sequence[str] = ()
    objects: Sequence[str] = ()

    def beside(self, amp: str, bound: set[str]) -> str:
        """Return the line for another branch, which assigns other objects to the variables in ``bound``."""
        if not bound & set(self.into):
            return self.bare
        named = [name if name in bound else code for name, code in zip(self.into, self.objects, strict=True)]
        return _prepare(amp, self.into, named, [])


def initialize(work: Work, call: cst.Call, starts: Sequence[cst.Call], sessions: dict[cst.CSTNode, str]) -> Start:
    """Rewrite a call of ``initialize``, one of a file's ``starts``.

    Args:
        work: takes the changes.
        call: the call.
        starts: all of the file's.
        sessions: block → the line that makes its session, of the calls before this one; gets this one's.

    Raises:
        CannotMigrate: its models or optimizers have no names, or its result is used otherwise.
    """
    source, amp = work.source, work.names.amp
    if "*" in keywords(call):
        raise work.stop(call, "amp.initialize with *arguments", "name the arguments")
    models = _objects(work, call, argument(call, "models", 0))
    optimizers = _objects(work, call, argument(call, "optimizers", 1), lambda given: given)
    codes = ([source.code(m) for m in models], [source.code(o) for o in optimizers])
    simple, assign = source.simple(call), source.assignment(call)
    if assign is not None and len(assign.targets) == 1:
        given = _given(assign)
        if len(given) != len(models) + len(optimizers):
            raise work.stop(call, "amp.initialize with other results than it has arguments", "call amp.prepare")
        bare = [source.code(moved(m)) for m in models]
        moves = [code for name, code in zip(bare, codes[0], strict=True) if name != code]
        result = Start(call, [*map(moved, models), *given[: len(models)]], [*optimizers, *given[len(models) :]])
        if again(source, call, starts):
            work.edits.statement(source.statement(call))
            return result
        refuse_conditions(work, call, starts)
        into = [source.code(one) for one in given]
        lines = (_prepare(amp, into, *codes), _prepare(amp, into, bare, codes[1]))
        prepare = _Prepare(*lines, moves, into, [*bare, *codes[1]])
        _put(work, call, starts, sessions, [dotted(one) for one in optimizers], prepare)
        return result
    if not isinstance(simple, cst.Return) or simple.value is not call:
        raise work.stop(call, "amp.initialize inside an expression", "assign its result on a separate line")
    line = f"return {amp}.prepare({', '.join([*codes[0], *codes[1]])})"
    _put(work, call, starts, sessions, [], _Prepare(line, line))
    return Start(call, [*map(moved, models)], optimizers)


def _put(
    work: Work,
    call: cst.Call,
    starts: Sequence[cst.Call],
    sessions: dict[cst.CSTNode, str],
    optimizers: Sequence[str],
    prepare: _Prepare,
) -> None:
    """Write the session's lines: outside the flag that guards them, or one for each branch."""
    source, names = work.source, work.names
    gone = _imports(source) | {each for each, code in work.edits.lines.items() if not code}
    statement = outside(source, source.statement(call), gone)
    told = settings(work, call)
    chain = guards(source, statement, optimizers, lambda test: answered(source, test))
    if prepare.code.startswith("return"):
        chain = []
    if any(_asks(guard.node.test, {*prepare.into, *prepare.objects}) for guard in chain):
        _put_under(work, call, chain, sessions, prepare, told)
        return
    alone = not any(source.inside(one, chain[-1].node) for one in starts if one is not call) if chain else True
    place = lift(work, statement, chain, gone) if chain and alone else None
    stays = place == "before" and bool(prepare.moves)
    if place is None or stays or _apart(source, statement, chain, prepare, optimizers, place):
        line = session_line(names, names.amp, "torch", **told)
        work.edits.statement(statement, *_once(work, call, sessions, statement, line), prepare.code)
        _otherwise(work, statement, chain, starts, optimizers, prepare)
        return
    outer = chain[-1].node
    line = session_line(names, names.amp, "torch", **_switched(told, condition(chain)))
    lines = (*_once(work, call, sessions, outer, line), prepare.bare)
    if empty(source, statement, chain, gone) and not prepare.moves:
        work.edits.statement(outer, *lines)
        return
    work.edits.statement(statement, *prepare.moves)  # without the flag, models stay where they are
    for line in lines:
        (work.edits.after if place == "after" else work.edits.before)(outer, line)


def _put_under(
    work: Work,
    call: cst.Call,
    chain: Sequence[Guard],
    sessions: dict[cst.CSTNode, str],
    prepare: _Prepare,
    told: dict[str, str | None],
) -> None:
    """Write the session before an ``if`` that asks whether there is a model, and prepare under it.

    Raises:
        CannotMigrate: a flag is asked for too, or the session's arguments are made under the ``if``.
    """
    objects, outer = {*prepare.into, *prepare.objects}, chain[-1].node
    line = session_line(work.names, work.names.amp, "torch", **told)
    known = names_in(work.source, call) & targets(outer) - objects
    if known or not all(_asks(guard.node.test, objects, alone=True) for guard in chain):
        asked = " ".join(work.source.code(next(g for g in chain if _asks(g.node.test, objects)).node.test).split())
        raise work.stop(outer, f"amp.initialize behind `if {asked}`, which asks whether there is something to prepare",
                        "make the session before it, from all flags, and call amp.prepare under it")  # fmt: skip
    for code in _once(work, call, sessions, outer, line):
        work.edits.before(outer, code)
    work.edits.statement(work.source.statement(call), prepare.code)


def _asks(test: cst.BaseExpression, objects: set[str], *, alone: bool = False) -> bool:
    """Whether a condition asks for one of these objects: ``model is not None``; ``alone``, for nothing else."""
    found = [_asked(part) in objects for part in conjuncts(test)]
    return all(found) if alone else any(found)


def _asked(test: cst.BaseExpression) -> str:
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        one = test.comparisons[0]
        if isinstance(one.operator, cst.IsNot | cst.NotEqual) and dotted(one.comparator) == "None":
            return dotted(test.left)
    return none_of(test) or dotted(test)


def _apart(
    source: Source,
    statement: Statement,
    chain: Sequence[Guard],
    prepare: _Prepare,
    optimizers: Sequence[str],
    place: str,
) -> bool:
    """Whether branches without AMP make other objects, so that each branch prepares its objects."""
    named = {name for name, code in zip(prepare.into, prepare.objects, strict=True) if name != code}
    wanted = named | (set(optimizers) if place == "before" else set())
    return any(guard.beside(source, statement) & wanted for guard in chain)


def _once(work: Work, call: cst.Call, sessions: dict[cst.CSTNode, str], place: Statement, line: str) -> Sequence[str]:
    """Return the line that makes a session, nothing where its block has one with the same settings.

    Raises:
        CannotMigrate: the block has a session with other settings.
    """
    block = work.source.block(place)
    if block not in sessions:
        sessions[block] = line
        return [line]
    if sessions[block] != line:
        raise work.stop(call, "amp.initialize again, with other settings",
                        "one session for all models, or one for each, which scales its losses")  # fmt: skip
    return []


def _otherwise(
    work: Work,
    statement: Statement,
    chain: Sequence[Guard],
    starts: Sequence[cst.Call],
    optimizers: Sequence[str],
    prepare: _Prepare,
) -> None:
    """Make a session in the branches beside a line that makes one."""
    outer = [] if prepare.code.startswith("return") else guards(work.source, statement, ())[len(chain) :]
    plain = session_line(work.names, work.names.amp, "torch", policy='"float32"')
    made = [work.source.parents[start] for start in starts]
    for guard in (*chain, *(guard for guard in outer if guard.elsewhere(optimizers))):
        if guard.node not in work.completed:
            work.completed.add(guard.node)
            otherwise(work, [guard], made, plain, prepare.beside(work.names.amp, guard.beside(work.source, statement)))


def _switched(told: dict[str, str | None], test: str) -> dict[str, str | None]:
    """Return a session's arguments under a flag."""
    policy, scale = told["policy"], told["loss_scale"]
    if test == "True":
        return told
    return {
        "policy": f'{bracketed(policy or "")} if {test} else "float32"',
        "loss_scale": None if scale is None else f'{bracketed(scale)} if {test} else "none"',
    }


def _imports(source: Source) -> set[Statement]:
    """Return the statements that do nothing but import amp."""
    return {
        source.statement(node)
        for node in source.nodes
        if isinstance(node, cst.ImportFrom)
        and not isinstance(node.names, cst.ImportStar)
        and node.module is not None
        and dotted(node.module) == "apex"
        and [alias.evaluated_name for alias in node.names] == ["amp"]
    }


def _given(assign: cst.Assign) -> list[cst.BaseExpression]:
    """Return the expressions that an assignment gives, lists and tuples taken apart."""
    goals: list[cst.BaseExpression] = [assign.targets[0].target]
    found: list[cst.BaseExpression] = []
    while goals:
        goal = goals.pop(0)
        if isinstance(goal, cst.Tuple | cst.List):
            goals[:0] = [element.value for element in goal.elements]
        else:
            found.append(goal)
    return found


def _prepare(amp: str, given: Sequence[str], models: Sequence[str], optimizers: Sequence[str]) -> str:
    if [*given] == [*models, *optimizers]:
        return prepare_line(amp, models, optimizers)
    objects = ", ".join([*models, *optimizers])
    line = f"{', '.join(given)} = {amp}.prepare({objects})"
    return line if len(line) <= LONGEST else f"{', '.join(given)} = {amp}.prepare(\n    {objects}\n)"


def _objects(
    work: Work,
    call: cst.Call,
    given: cst.BaseExpression | None,
    inner: Callable[[cst.BaseExpression], cst.BaseExpression] = moved,
) -> list[cst.BaseExpression]:
    """Return the models or optimizers that ``initialize`` was given; ``inner`` is what an expression gives back."""
    if given is None or dotted(given) == "None":
        return []
    parts = [given]
    if isinstance(given, cst.List | cst.Tuple):
        parts = [element.value for element in given.elements]
    elif dotted(given).rpartition(".")[2] in _LISTS:
        raise work.stop(
            call, f"amp.initialize of a list in {dotted(given)}",
            "make the session with `ua.Amp(...)` and call `amp.prepare(*models, *optimizers)`",
        )  # fmt: skip
    if not all(dotted(inner(part)) or isinstance(part, cst.Subscript) for part in parts):
        raise work.stop(
            call, "amp.initialize of an expression",
            "assign models and optimizers to names before, and run migrate again",
        )  # fmt: skip
    return parts
