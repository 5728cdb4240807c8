"""Steps that a condition keeps out behind unscaled gradients: such an iteration ended with a scaler's ``update``, and
ends with a session's ``step``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from ..edits import Edits
from ..nodes import dotted, walk
from ..source import Source, Statement
from .facts import Facts

_Node = TypeVar("_Node", bound=cst.CSTNode)
Problem = tuple[cst.CSTNode, str, str]
_ABOUT_GRADIENTS = re.compile(r"finite|nan\b|isinf|norm|grad|overflow", re.IGNORECASE)
_UNSCALES = re.compile(r"\.(unscale|clip_grad_norm|clip_grad_value)\(")
_UNSCALING = ("unscale", "clip_grad_norm", "clip_grad_value")
_LEAVES = (cst.Continue, cst.Break, cst.Return)


@dataclass
class Rejection:
    """An ``if`` of which one path takes no step although gradients are unscaled.

    Attributes:
        gate: the ``if``.
        steps: the calls of ``amp.step`` that the other path takes.
        problem: why nothing can be added; empty where the session can be told.
    """

    gate: cst.If
    steps: list[cst.Call] = field(default_factory=list)
    problem: str = ""


def unfinished_windows(facts: Facts) -> Iterator[Problem]:
    """Behind unscaled gradients each path has its step, or can be given one."""
    for one in rejections(facts):
        if one.problem:
            code = facts.source.code(one.steps[0])
            what = f"gradients are unscaled before `if {_line(facts, one.gate.test)}`, and {code} {one.problem}"
            yield one.gate, what, "`amp.skip_if(condition)` and then the step, on every path"


def with_rejections(result: Source) -> dict[str, bytes]:
    """Return path → text of migrated files in which the paths that take no step tell the session so."""
    edits, files = Edits(), result.files or {"": result}
    texts = {path: one.module.code for path, one in files.items()}
    if any(_UNSCALES.search(text) for text in texts.values()):
        facts = Facts(result)
        for one in rejections(facts):
            if not one.problem:
                _tell(facts, edits, one)
    return {path: edits.apply(one.module).bytes for path, one in files.items()}


def rejections(facts: Facts) -> list[Rejection]:
    """Return the conditions that keep a step out once its gradients are unscaled, each once."""
    found: dict[cst.If, Rejection] = {}
    conditions = _by_scope(facts, facts.source.of(cst.If))
    for scope, calls in _by_scope(facts, facts.calls("step", "scale_loss", *_UNSCALING)).items():
        for place, step in enumerate(calls):
            unscaled = _unscaled(facts, step, calls[:place]) if _method(step) == "step" else None
            if unscaled is None:
                continue
            gates = _gates(facts, step, unscaled)
            for gate in (*gates, *_left(facts, step, unscaled, conditions.get(scope, []))):
                one = found.setdefault(gate, Rejection(gate))
                one.steps.append(step)
                one.problem = one.problem or _problem(facts, gate, step, len(gates))
    return list(found.values())


# -- where ------------------------------------------------------------------------------------------------------------


def _by_scope(facts: Facts, nodes: Sequence[_Node]) -> dict[cst.CSTNode, list[_Node]]:
    """Return function → its nodes, in order."""
    found: dict[cst.CSTNode, list[_Node]] = {}
    for node in sorted(nodes, key=facts.source.order.__getitem__):
        found.setdefault(facts.source.scope(node), []).append(node)
    return found


def _unscaled(facts: Facts, step: cst.Call, before: Sequence[cst.Call]) -> cst.Call | None:
    """Return the call that unscales an optimizer's gradients before its step, behind the last scaled loss."""
    source = facts.source
    for call in reversed(before):
        if _method(call) == "scale_loss":
            return None
        if _stepped(source, call) == _stepped(source, step) and not source.exclusive(call, step):
            return call if _method(call) in _UNSCALING else None
    return None


def _gates(facts: Facts, step: cst.Call, unscaled: cst.Call) -> list[cst.If]:
    """Return the ``if`` statements around a step, and not around the unscaling, without a step on the other path."""
    source = facts.source
    known = {_line(facts, one.test) for one in source.above(unscaled) if isinstance(one, cst.If)}
    found = []
    for above in source.above(step):
        if above is source.scope(step) or source.inside(unscaled, above):
            break
        if isinstance(above, cst.If) and _line(facts, above.test) not in known:
            others = [one for one in facts.calls("step") if _stepped(source, one) == _stepped(source, step)]
            if not any(source.inside(one, above) and source.exclusive(one, step) for one in others):
                found.append(above)
    return found


def _left(facts: Facts, step: cst.Call, unscaled: cst.Call, conditions: Sequence[cst.If]) -> list[cst.If]:
    """Return the ``if`` statements between unscaling and step that go on to the next batch, or out."""
    source, order = facts.source, facts.source.order
    found = []
    first, last = (bisect_left(conditions, order[one], key=order.__getitem__) for one in (unscaled, step))
    for node in conditions[first:last]:
        beside = source.in_block(step, source.block(node))
        if beside is None or beside is node or node.orelse is not None or _leaving(node.body) is None:
            continue
        if not any(source.inside(one, node) for one in facts.calls("step")):
            found.append(node)
    return found


def _problem(facts: Facts, gate: cst.If, step: cst.Call, many: int) -> str:
    """Return why the path beside a step cannot be given one; empty where it can."""
    source = facts.source
    code = source.code(gate.test)
    if any(isinstance(one, cst.Modulo) for one in walk(gate.test)):
        return "comes only after several micro-batches"
    if not _ABOUT_GRADIENTS.search(code) and not _emptied(facts, gate, step):
        return "is not always taken, and whether the other batches' gradients count cannot be seen"
    if many > 1 or isinstance(gate.orelse, cst.If) or isinstance(source.parents.get(gate), cst.If):
        return "is behind several conditions"
    other = _other(source, gate, step)
    looked_at = [one.attr.value for one in walk(other) if isinstance(one, cst.Attribute)] if other is not None else []
    reads = "grad" in looked_at
    return "clears the gradients that the other path reads" if reads else ""


def _emptied(facts: Facts, gate: cst.If, step: cst.Call) -> bool:
    """Whether gradients are emptied on both paths: then no batch without a step leaves any."""
    source = facts.source
    loop = next((one for one in source.above(step) if isinstance(one, cst.For | cst.While | cst.FunctionDef)), None)
    calls = [one for one in source.methods("zero_grad") if loop is None or source.inside(one, loop)]
    return any(not source.inside(one, gate) for one in calls)


# -- what is added ----------------------------------------------------------------------------------------------------


def _tell(facts: Facts, edits: Edits, one: Rejection) -> None:
    source, gate = facts.source, one.gate
    amp = source.code(one.steps[0].func.value)  # type: ignore[attr-defined]  # a method
    steps = [source.code(step) for step in one.steps]
    skipped = [f"{amp}.skip_if(True)", *steps]
    other = _other(source, gate, one.steps[0])
    body = [each for each in gate.body.body if isinstance(each, Statement)]
    alone = [source.statement(step) for step in one.steps]
    if other is None and body == alone:
        edits.statement(gate, f"{amp}.skip_if({_negated(source, gate.test)})", *steps)
    elif other is None:
        made = cst.Else(cst.IndentedBlock(cst.parse_module("\n".join(skipped)).body))
        edits.change(gate, lambda new: new.with_changes(orelse=made))
    else:
        first = next(each for each in other.body if isinstance(each, Statement))
        edits.before(first, "\n".join(skipped))


def _other(source: Source, gate: cst.If, step: cst.Call) -> cst.BaseSuite | None:
    """Return the path of an ``if`` that does not hold a step."""
    if not source.inside(step, gate.body):
        return gate.body
    return gate.orelse.body if isinstance(gate.orelse, cst.Else) else None


def _negated(source: Source, test: cst.BaseExpression) -> str:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return source.code(test.expression)
    code = source.code(test)
    return f"not {code}" if isinstance(test, cst.Call) or dotted(test) else f"not ({code})"


def _leaving(body: cst.BaseSuite) -> cst.BaseSmallStatement | None:
    """Return the statement at a block's end that leaves it, without an error."""
    last = body.body[-1] if isinstance(body, cst.IndentedBlock) and body.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    return small if isinstance(small, _LEAVES) else None


def _method(call: cst.Call) -> str:
    assert isinstance(call.func, cst.Attribute)
    return call.func.attr.value


def _stepped(source: Source, call: cst.Call) -> str:
    """Return the code of the optimizer that a session's call is given."""
    return source.code(call.args[0].value) if call.args else ""


def _line(facts: Facts, node: cst.CSTNode) -> str:
    return " ".join(facts.source.code(node).split())
