"""What is done with a ``GradScaler``: the calls on it, and the questions whether there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from ..nodes import dotted
from ..source import Statement
from ..training.aliases import Aliases
from ..work import Work
from .scaler import Made, Scaler, target_of


class Use(NamedTuple):
    """A call of a scaler's ``method``, where the session is called ``amp``."""

    call: cst.Call
    method: str
    amp: str


@dataclass(frozen=True)
class Uses:
    """All calls on a scaler.

    Attributes:
        all: in the order of the text.
        optimizers: the expressions that it steps.
    """

    all: Sequence[Use]
    optimizers: Sequence[cst.BaseExpression]

    def of(self, *methods: str) -> list[cst.Call]:
        """Return the calls of these methods."""
        return [use.call for use in self.all if use.method in methods]


def find_uses(work: Work, aliases: Aliases, scaler: Scaler) -> Uses:
    """Return the calls on a scaler; everything else that is done with it is rewritten, or blocks."""
    found: list[Use] = []
    for use in scaler.uses:
        with work.blocking():
            found += _use(work, aliases, scaler, use)
    steps = [use.call.args[0].value for use in found if use.method == "step" and use.call.args]
    steps = steps or list(_past_the_scaler(work, [use.call for use in found if use.method == "scale"]))
    if all(isinstance(work.source.parents[use], cst.AssignTarget | cst.AnnAssign) for use in scaler.uses):
        work.block(scaler.call, "a GradScaler that nothing here uses",
                   "remove it; where another file uses it, migrate that file together with this one")  # fmt: skip
    elif not steps and not any(isinstance(work.source.parents[use], cst.Arg) for use in scaler.uses):
        work.block(scaler.call, "a GradScaler whose step is never called",
                   "migrate the file that calls scaler.step together with this one, by hand")  # fmt: skip
    return Uses(found, steps)


def _past_the_scaler(work: Work, scaled: Sequence[cst.Call]) -> Iterator[cst.BaseExpression]:
    """Yield the optimizers that step by themselves behind a scaled loss."""
    source, order = work.source, work.source.order
    for call in source.methods("step"):
        assert isinstance(call.func, cst.Attribute)
        name = dotted(call.func.value)
        behind = any(source.scope(one) is source.scope(call) and order[one] < order[call] for one in scaled)
        if behind and not call.args and name.rpartition(".")[2].lower().startswith("opt"):
            yield call.func.value


def optimizer_of(work: Work, call: cst.Call) -> str:
    """Return the code of the optimizer that a call is given.

    Raises:
        CannotMigrate: it is given something else.
    """
    name = work.source.code(call.args[0].value) if len(call.args) == 1 else ""
    if not name.replace(".", "").replace("_", "").isalnum():
        raise work.stop(call, work.source.code(call), "`amp.step(optimizer)` takes one prepared optimizer")
    return name


def statement_of(work: Work, call: cst.Call) -> Statement:
    """Return the statement that a call is.

    Raises:
        CannotMigrate: something else looks at its result.
    """
    write = "`amp.step(optimizer)` returns a StepResult: `.applied` says whether it stepped"
    return work.alone(call, write, f"the result of {work.source.code(call)} is used")


def _use(work: Work, aliases: Aliases, scaler: Scaler, use: cst.BaseExpression) -> Iterator[Use]:
    source = work.source
    parent = source.parents[use]
    if isinstance(parent, cst.Attribute):
        call = source.parents[parent]
        if not isinstance(call, cst.Call) or call.func is not parent:
            raise work.stop(use, source.code(parent), "the session has no such attribute")
        yield Use(call, parent.attr.value, scaler.name(use))
    elif isinstance(parent, cst.Arg):
        _passed(work, aliases, scaler, use)
    elif is_question(source.parents[parent] if isinstance(parent, cst.ComparisonTarget) else parent, use):
        _answer(work, scaler, use, parent)
    elif isinstance(parent, cst.AssignTarget):
        _given(work, scaler, source.parents[parent], use)
    elif not isinstance(parent, cst.Assign | cst.Return | cst.AnnAssign | cst.Element):
        code = source.first_line(use)
        raise work.stop(use, f"the scaler is kept or used in `{code}`",
                        "give that code the session, and write it by hand")  # fmt: skip


def _given(work: Work, scaler: Scaler, assign: cst.CSTNode, use: cst.BaseExpression) -> None:
    """Refuse values of the scaler's name that are no scaler."""
    made = [one for one in scaler.made if one.assign is assign]
    order = work.source.order
    late = [one for one in made if one.call is None and order[assign] > order[scaler.call]]
    late = [
        one
        for one in late
        if work.source.scope(assign) is work.source.scope(scaler.call) and not _other_branch(work, scaler, one)
    ]
    if late and isinstance(assign, cst.Assign):
        raise work.stop(use, f"the scaler's name is assigned twice, also in `{work.source.code(assign)}`",
                        "make one session for both cases")  # fmt: skip
    if made or not isinstance(assign, cst.Assign):
        return
    value = assign.value
    if dotted(value) or isinstance(value, cst.Tuple) or isinstance(target_of(assign), cst.Tuple):
        return
    code = " ".join(work.source.code(assign).split())
    raise work.stop(use, f"the scaler's name is assigned twice, also in `{code}`", "make one session for both cases")


def _other_branch(work: Work, scaler: Scaler, made: Made) -> bool:
    """Whether ``scaler = None`` is the ``else`` of the ``if`` that makes the scaler."""
    source = work.source
    owners = [one for one in source.above(made.assign) if isinstance(one, cst.If)]
    return any(source.inside(scaler.call, one) for one in owners)


def _passed(work: Work, aliases: Aliases, scaler: Scaler, use: cst.BaseExpression) -> None:
    """Refuse to hand the session to code of other files, which wants a scaler; of checkpoints, it wants the state."""
    arg = work.source.parents[use]
    call = work.source.parents[arg]
    if not isinstance(call, cst.Call):
        return
    if dotted(call.func) in ("print", "bool"):
        return
    if not aliases.reached.functions(call):
        if "checkpoint" in dotted(call.func).rpartition(".")[2].lower():
            _kept(work, scaler, use, call)
            return
        raise work.stop(
            call, f"the scaler is passed to {dotted(call.func) or 'code'}, which this file does not define",
            "give it the session and migrate it too, or pass `amp.backend.interop.scaler`, which is a GradScaler",
        )  # fmt: skip
    if not any(one is arg for one, _, _ in aliases.reached.arguments(call)):
        raise work.stop(call, f"the scaler is passed to {dotted(call.func)} in *args", "name the argument")


def _kept(work: Work, scaler: Scaler, use: cst.BaseExpression, call: cst.Call) -> None:
    """Hand the session to code that keeps or restores its state, None where that was given no scaler."""
    name = scaler.name(use)
    optional = any(one.call is None or one.switch is not None for one in scaler.made)
    work.edits.expression(use, f"{name} if {name}.loss_scale_settings.enabled else None" if optional else name)
    what = f"the session is passed to {dotted(call.func)}, which this file does not define, in place of a scaler"
    work.note(call, what, "it has `state_dict` and `load_state_dict`; look whether that code uses more of a scaler")


# -- whether there is a scaler ----------------------------------------------------------------------------------------


def is_question(node: cst.CSTNode, use: cst.BaseExpression) -> bool:
    """Whether what is around a use asks if there is a scaler."""
    if isinstance(node, cst.Comparison):
        one = node.comparisons[0]
        return len(node.comparisons) == 1 and isinstance(one.operator, cst.Is | cst.IsNot | cst.Equal | cst.NotEqual)
    if isinstance(node, cst.If | cst.IfExp):
        return node.test is use
    return isinstance(node, cst.BooleanOperation | cst.UnaryOperation)


def _answer(work: Work, scaler: Scaler, use: cst.BaseExpression, parent: cst.CSTNode) -> None:
    """``scaler is not None`` becomes whether the session scales losses, or a constant truth."""
    enabled = scaler.there(use)
    if not isinstance(parent, cst.Comparison):
        work.edits.expression(use, enabled)
        return
    none = isinstance(parent.comparisons[0].operator, cst.Is | cst.Equal)
    if dotted(parent.comparisons[0].comparator) != "None":
        raise work.stop(use, f"`{work.source.code(parent)}`", "the session has no counterpart")
    answer = enabled.replace(" is not None", " is None") if " is not " in enabled else f"not {enabled}"
    work.edits.expression(parent, answer if none else enabled)
