"""Loops over a ``tf.GradientTape``: from ``apply_gradients`` back to the loss, through scaling, unscaling, clipping."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from .sessions import literal, stop
from .source import Source, Statement, argument, dotted

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


def find_loops(source: Source) -> list[Loop]:
    """Return the loops of a file.

    Raises:
        CannotMigrate: one does more with the gradients than is understood.
    """
    calls = [*source.methods("apply_gradients"), *source.methods("apply")]
    return [_Reader(source, call).read() for call in calls if _applies(source, call)]


def _applies(source: Source, call: cst.Call) -> bool:
    simple = source.simple(call)
    first = argument(call, "grads_and_vars", 0)
    zipped = isinstance(first, cst.Call) and dotted(first.func) == "zip"
    return isinstance(simple, cst.Expr) and simple.value is call and zipped


class _Reader:
    def __init__(self, source: Source, call: cst.Call) -> None:
        self.source, self.call = source, call
        self.scope = source.scope(call)
        self.optimizer = dotted(call.func).rpartition(".")[0]
        self.removed: list[Statement] = []
        self.clips: list[tuple[Statement, str]] = []
        self.chain: set[str] = set()

    def read(self) -> Loop:
        zipped = argument(self.call, "grads_and_vars", 0)
        assert isinstance(zipped, cst.Call)
        if not self.optimizer or len(self.call.args) != 1 or len(zipped.args) != 2:
            raise self._stop(self.call, "`amp.step(optimizer)`, which applies to all that the optimizer trains")
        gradient = self._gradient(zipped.args[0].value)
        over, loss = argument(gradient, "sources", 1), argument(gradient, "target", 0)
        if over is None or loss is None:
            raise self._stop(gradient, "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")
        model = self._model(over)
        tape, with_ = self._tape(gradient)
        statement = self.source.statement(gradient)
        if statement is self.source.statement(self.call):
            raise self._stop(self.call, "take the gradients in a line of their own and run migrate again")
        self.removed = [each for each in self.removed if each is not statement]
        unscaled = self._loss(loss)
        self._check_uses(statement)
        apply = self.source.statement(self.call)
        return Loop(apply, self.optimizer, statement, unscaled, tape, with_, model, self.clips, self.removed)

    def _stop(self, node: cst.CSTNode, write: str) -> Exception:
        return stop(self.source, node, self.source.code(node), write)

    def _assigned(self, name: str, before: cst.CSTNode) -> cst.Assign:
        """Return the last assignment of a variable before a statement, tuples included."""
        end = self.source.order[self.source.statement(before)]
        found = [
            node
            for node in self.source.nodes
            if isinstance(node, cst.Assign)
            and self.source.scope(node) is self.scope
            and self.source.order[node] < end
            and name in _first_names(node)
        ]
        if not found:
            raise self._stop(before, f"{name} is not computed in this function: use amp.gradients(optimizer)")
        return found[-1]

    def _gradient(self, node: cst.BaseExpression) -> cst.Call:
        """Follow gradients back to ``tape.gradient``."""
        if isinstance(node, cst.Name):
            assign = self._assigned(node.value, node)
            self.chain.add(node.value)
            statement = self.source.statement(assign)
            clip = self._clip(assign.value)
            if clip is not None:
                self.clips.append((statement, clip[1]))
                return self._gradient(clip[0])
            self.removed.append(statement)
            return self._gradient(assign.value)
        if isinstance(node, cst.Call):
            method = dotted(node.func).rpartition(".")
            if method[2] == "get_unscaled_gradients" and method[0] == self.optimizer:
                return self._gradient(node.args[0].value)
            if method[2] == "gradient" and method[0]:
                return node
        raise self._stop(node, "edit gradients in `amp.gradients(optimizer)`, between amp.unscale and amp.step")

    def _clip(self, node: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
        """Return what is clipped, and the session's call that does it."""
        if isinstance(node, cst.Call) and self.source.meaning(node.func) == "tensorflow.clip_by_global_norm":
            limit = argument(node, "clip_norm", 1)
            if limit is not None and len(node.args) == 2:
                return node.args[0].value, f"clip_grad_norm({self.optimizer}, {self.source.code(limit)})"
        if isinstance(node, cst.ListComp) and isinstance(node.elt, cst.Call) and node.for_in.inner_for_in is None:
            elt = node.elt
            by_value = self.source.meaning(elt.func) == "tensorflow.clip_by_value" and len(elt.args) == 3
            if by_value and self.source.code(elt.args[0].value) == self.source.code(node.for_in.target):
                low, high = (literal(arg.value) for arg in elt.args[1:])
                if isinstance(low, int | float) and isinstance(high, int | float) and low == -high:
                    return node.for_in.iter, f"clip_grad_value({self.optimizer}, {self.source.code(elt.args[2].value)})"
        return None

    def _model(self, over: cst.BaseExpression) -> str:
        name = dotted(over)
        if name and "." not in name:
            assigns = self.source.assigns(name)
            name = dotted(assigns[0].value) if len(assigns) == 1 else ""
        model, _, weights = name.rpartition(".")
        if not model or weights not in WEIGHTS:
            raise self._stop(
                over, "an optimizer trains all of its model's variables: build it for those it should train"
            )
        return model

    def _tape(self, gradient: cst.Call) -> tuple[cst.WithItem, cst.With]:
        name = dotted(gradient.func).rpartition(".")[0]
        for node in reversed(self.source.nodes):
            if isinstance(node, cst.With) and self.source.scope(node) is self.scope:
                for item in node.items:
                    named = item.asname is not None and dotted(item.asname.name) == name
                    if named and self.source.order[node] < self.source.order[gradient]:
                        self._check_tape(name, node, gradient)
                        return item, node
        raise self._stop(gradient, "the tape is opened by `with amp.autocast():`, in the same function")

    def _check_tape(self, name: str, with_: cst.With, gradient: cst.Call) -> None:
        uses = [use for use in self.source.uses(name) if self.source.order[use] > self.source.order[with_]]
        uses = [use for use in uses if self.source.scope(use) is self.scope]
        others = [use for use in uses if not self.source.inside(use, gradient.func)]
        others = [use for use in others if not isinstance(self.source.parents[use], cst.AsName)]
        if others:
            raise self._stop(
                self.source.statement(others[0]), "amp.autocast() opens a tape of its own for one gradient"
            )

    def _loss(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Follow a scaled loss back to the loss."""
        if isinstance(node, cst.Name):
            assign = self._assigned(node.value, node) if self._is_scaled(node.value) else None
            if assign is not None and isinstance(assign.value, cst.Call):
                self.chain.add(node.value)
                self.removed.append(self.source.statement(assign))
                return assign.value.args[0].value
        elif isinstance(node, cst.Call) and self._scales(node):
            return node.args[0].value
        return node

    def _is_scaled(self, name: str) -> bool:
        return any(self._scales(a.value) for a in self.source.assigns(name) if self.source.scope(a) is self.scope)

    def _scales(self, node: cst.BaseExpression) -> bool:
        name = dotted(node.func) if isinstance(node, cst.Call) else ""
        return name in (f"{self.optimizer}.get_scaled_loss", f"{self.optimizer}.scale_loss")

    def _check_uses(self, gradient: Statement) -> None:
        """Refuse where something else looks at what is gone."""
        kept = {gradient, self.source.statement(self.call), *self.removed, *(statement for statement, _ in self.clips)}
        for name in self.chain:
            for use in self.source.uses(name):
                statement = self.source.statement(use)
                simple = self.source.simple(use)
                taken = isinstance(simple, cst.Assign) and name in _first_names(simple)
                if self.source.scope(use) is self.scope and statement not in kept and not taken:
                    raise self._stop(statement, "read gradients from `amp.gradients(optimizer)`")


def _first_names(assign: cst.Assign) -> set[str]:
    """Return the variable assigned; of a tuple, the first one."""
    found = set()
    for target in assign.targets:
        node = target.target
        if isinstance(node, cst.Tuple | cst.List) and node.elements:
            node = node.elements[0].value  # type: ignore[assignment]
        found.add(dotted(node))
    return found
