"""Loops over a ``tf.GradientTape``, as they were written."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ..nodes import argument, dotted
from ..source import Source, Statement
from ..work import EXCHANGED, Work
from .chain import Chain
from .given import model_steps

WEIGHTS = ("trainable_variables", "trainable_weights", "variables", "weights")


@dataclass
class Loop:
    """One step of training as it was written.

    Attributes:
        apply: the statement that applies the gradients.
        optimizer: its optimizer's code.
        gradient: the statement that takes the gradients.
        loss: the unscaled loss.
        tape: the item of the ``with`` statement that opens the tape.
        with_: that statement.
        model: the model's code.
        clips: statements that clip → what is written in their place.
        removed: statements that go.
    """

    apply: Statement
    optimizer: str
    gradient: Statement
    loss: cst.BaseExpression
    tape: cst.WithItem
    with_: cst.With
    model: str
    clips: list[tuple[Statement, str]] = field(default_factory=list)
    removed: list[Statement] = field(default_factory=list)


def find_loops(work: Work) -> list[Loop]:
    """Return the loops of a file; one that does more with the gradients than is understood blocks."""
    loops: list[Loop] = []
    own = [step.function for step in model_steps(work.source)]
    for call in (*work.source.methods("apply_gradients"), *work.source.methods("apply")):
        if _applies(work.source, call) and work.source.scope(call) not in own:
            with work.blocking():
                loops.append(_read(work, call))
    return loops


def _applies(source: Source, call: cst.Call) -> bool:
    first = argument(call, "grads_and_vars", 0)
    zipped = isinstance(first, cst.Call) and dotted(first.func) == "zip"
    return source.is_alone(call) and zipped


def _read(work: Work, call: cst.Call) -> Loop:
    source, chain = work.source, Chain(work, call)
    zipped = argument(call, "grads_and_vars", 0)
    assert isinstance(zipped, cst.Call)
    if not chain.optimizer or len(call.args) != 1 or len(zipped.args) != 2:
        raise chain.stop(call, "`amp.step(optimizer)`, which applies to all that the optimizer trains")
    gradient = chain.gradient(zipped.args[0].value)
    over, loss = argument(gradient, "sources", 1), argument(gradient, "target", 0)
    if over is None or loss is None:
        raise chain.stop(gradient, "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")
    model = _model(source, chain, over)
    tape, with_ = _tape(source, chain, gradient)
    apply, statement = source.statement(call), source.statement(gradient)
    if statement is apply:
        raise chain.stop(call, "take the gradients on a separate line and run migrate again")
    if _decisions(source, call) != _decisions(source, gradient):
        what = f"{chain.optimizer} applies gradients at times, and drops those of the other batches"
        raise work.stop(call, what, "take the gradients under the same condition, or accumulate: accumulate_steps=...")
    chain.removed = [each for each in chain.removed if each is not statement]
    unscaled = chain.loss(loss)
    chain.check_scaled(loss, unscaled)
    chain.check_uses(statement)
    return Loop(apply, chain.optimizer, statement, unscaled, tape, with_, model, chain.clips, chain.removed)


def _decisions(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what decides in a function whether, or how often, a node is run."""
    kinds = cst.If | cst.Else | cst.For | cst.While | cst.Try | cst.ExceptHandler
    scope = source.scope(node)
    return [one for one in source.above(node) if isinstance(one, kinds) and source.scope(one) is scope]


def _model(source: Source, chain: Chain, over: cst.BaseExpression) -> str:
    """Return the code of the model whose variables gradients are taken of."""
    name = dotted(over)
    if name and "." not in name:
        assigns = source.assigns(name)
        name = dotted(assigns[0].value) if len(assigns) == 1 else ""
    model, _, weights = name.rpartition(".")
    if not model or weights not in WEIGHTS:
        raise chain.stop(over, "an optimizer trains all of its model's variables: build it for those it should train")
    return model


def _tape(source: Source, chain: Chain, gradient: cst.Call) -> tuple[cst.WithItem, cst.With]:
    """Return the item that opens the tape, and its ``with`` statement."""
    name = dotted(gradient.func).rpartition(".")[0]
    for node in reversed(source.nodes):
        if isinstance(node, cst.With) and source.scope(node) is chain.scope:
            for item in node.items:
                named = item.asname is not None and dotted(item.asname.name) == name
                if named and source.order[node] < source.order[gradient]:
                    _check_tape(source, chain, name, node, gradient)
                    return item, node
    raise chain.stop(gradient, "the tape is opened by `with amp.autocast():`, in the same function")


def _check_tape(source: Source, chain: Chain, name: str, with_: cst.With, gradient: cst.Call) -> None:
    uses = [use for use in source.uses(name) if source.order[use] > source.order[with_]]
    uses = [use for use in uses if source.scope(use) is chain.scope]
    others = [use for use in uses if not source.inside(use, gradient.func)]
    others = [use for use in others if not isinstance(source.parents[use], cst.AsName)]
    if others:
        statement = source.statement(others[0])
        exchanges = any(name in source.code(statement) for name in EXCHANGED)
        write = "use a tf.distribute strategy, whose replicas decide together: the session does not see this exchange"
        raise chain.stop(statement, write if exchanges else "amp.autocast() opens a separate tape for one gradient")
