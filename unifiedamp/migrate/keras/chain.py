"""From ``apply_gradients`` back to the loss: the variables between, through scaling, unscaling and clipping."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, literal, walk
from ..report import CannotMigrate
from ..source import Source, Statement
from ..work import Work


class Chain:
    """The variables that gradients go through in one step of training.

    Args:
        work: the migration.
        call: the call that applies the gradients.

    Attributes:
        scope: the function of the step.
        optimizer: the optimizer's code.
        removed: statements that go.
        clips: statements that clip, with what is written in their place.
    """

    def __init__(self, work: Work, call: cst.Call) -> None:
        self._work, self._source, self._call = work, work.source, call
        self.scope = work.source.scope(call)
        self.optimizer = dotted(call.func).rpartition(".")[0]
        self.removed: list[Statement] = []
        self.clips: list[tuple[Statement, str]] = []
        self._names: dict[str, None] = {}  # in the order found
        self._unscaled: cst.Call | None = None

    def stop(self, node: cst.CSTNode, write: str) -> CannotMigrate:
        """Return the error that names the code at ``node``."""
        lines = [line for line in self._source.code(node).splitlines() if not line.lstrip().startswith("#")]
        return self._work.stop(node, "\n".join(lines), write)

    def gradient(self, node: cst.BaseExpression) -> cst.Call:
        """Follow gradients back to ``tape.gradient``."""
        if isinstance(node, cst.Name):
            assign = self._assigned(node.value, node)
            self._names[node.value] = None
            statement = self._source.statement(assign)
            clip = _clip(self._source, assign.value, self.optimizer)
            if clip is not None:
                self.clips.append((statement, clip[1]))
                return self.gradient(clip[0])
            self.removed.append(statement)
            return self.gradient(assign.value)
        if isinstance(node, cst.Call):
            method = dotted(node.func).rpartition(".")
            if method[2] == "get_unscaled_gradients" and method[0] == self.optimizer and node.args:
                self._unscaled = node
                return self.gradient(node.args[0].value)
            if method[2] == "gradient" and method[0]:
                return node
            if method[2] == "get_unscaled_gradients" and method[0] not in ("", self.optimizer):
                what = f"{self.optimizer} applies gradients that {method[0]} unscales"
                raise self._work.stop(node, what, f"scale the loss for both: amp.scale_loss(loss, [{method[0]}, ...])")
        raise self.stop(node, "edit gradients in `amp.gradients(optimizer)`, between amp.unscale and amp.step")

    def loss(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Follow a scaled loss back to the loss."""
        if isinstance(node, cst.Name):
            assign = self._assigned(node.value, node) if self._is_scaled(node.value) else None
            if assign is not None and isinstance(assign.value, cst.Call):
                unscaled = self._scaled(assign.value)
                if dotted(unscaled) != node.value:  # else what reads it later reads the loss itself
                    self._names[node.value] = None
                else:
                    self._note_uses(assign, node)
                self.removed.append(self._source.statement(assign))
                return unscaled
        elif isinstance(node, cst.Call) and self._scales(node):
            return self._scaled(node)
        return node

    def _note_uses(self, assign: cst.Assign, loss: cst.Name) -> None:
        """Point at code that read the scaled loss by the loss's name."""
        source = self._source
        for use in source.uses(loss.value):
            later = source.scope(use) is self.scope and source.order[use] > source.order[self._call]
            if later and not source.inside(use, assign):
                note = "it is the loss itself now; see that nothing divides it by the scale"
                self._work.note(use, f"{loss.value} was the scaled loss here", note)

    def _scaled(self, call: cst.Call) -> cst.BaseExpression:
        if not call.args:
            raise self.stop(call, "name the loss that it scales")
        return call.args[0].value

    def check_uses(self, gradient: Statement) -> None:
        """Block where other code reads what is gone.

        Args:
            gradient: the statement that takes the gradients.
        """
        source = self._source
        kept = {gradient, source.statement(self._call), *self.removed, *(statement for statement, _ in self.clips)}
        for name in self._names:
            for use in source.uses(name):
                statement = source.statement(use)
                simple = source.simple(use)
                taken = isinstance(simple, cst.Assign) and name in _first_names(simple)
                if source.scope(use) is self.scope and statement not in kept and not taken:
                    code = self._source.code(statement)
                    self._work.block(statement, code, "read gradients from `amp.gradients(optimizer)`")

    def _assigned(self, name: str, before: cst.CSTNode) -> cst.Assign:
        """Return the last assignment of a variable before a statement, tuples included."""
        end = self._source.order[self._source.statement(before)]
        found = [
            node
            for node in self._source.assigned_in(self.scope)
            if self._source.order[node] < end and name in _first_names(node)
        ]
        if not found:
            what, write = f"{name}, which is not computed in this function", "use amp.gradients(optimizer)"
            if self._is_summed(name):
                what = f"{self.optimizer} applies {name}, in which gradients are accumulated"
                write = "let the session accumulate: ua.Amp(accumulate_steps=...), with amp.step after every loss"
            raise self._work.stop(before, what, write)
        return found[-1]

    def _is_summed(self, name: str) -> bool:
        """Whether gradients are added to what a variable holds: ``for total, grad in zip(sums, grads):``."""
        source = self._source
        for call in (*source.methods("assign_add"), *source.methods("assign")):
            around = [one for one in source.above(call) if isinstance(one, cst.For)]
            held = {dotted(n) for one in around for n in walk(one.iter)} | {dotted(n) for n in walk(call.func)}
            if name in held and source.scope(call) is self.scope:
                return True
        return False

    def check_scaled(self, loss: cst.BaseExpression, unscaled: cst.BaseExpression) -> None:
        """Point at gradients of a loss that is scaled, or at those that are unscaled, without the other one.

        Args:
            loss: what the gradients are taken of.
            unscaled: the loss itself.
        """
        write = "the session does both: the migrated step applies the gradients of the loss itself"
        if loss is unscaled and self._unscaled is not None:
            what = f"the loss is not scaled, and {self.optimizer} divided its gradients by the scale"
            self._work.note(self._unscaled, what, write)
        elif loss is not unscaled and self._unscaled is None and self._asks("get_scaled_loss"):
            self._work.note(self._call, f"{self.optimizer} applied gradients that are still scaled", write)

    def _asks(self, method: str) -> bool:
        calls = self._source.methods(method)
        return any(dotted(call.func) == f"{self.optimizer}.{method}" for call in calls)

    def _is_scaled(self, name: str) -> bool:
        return any(self._scales(a.value) for a in self._source.assigns(name) if self._source.scope(a) is self.scope)

    def _scales(self, node: cst.BaseExpression) -> bool:
        name = dotted(node.func) if isinstance(node, cst.Call) else ""
        return name in (f"{self.optimizer}.get_scaled_loss", f"{self.optimizer}.scale_loss")


def _clip(source: Source, node: cst.BaseExpression, optimizer: str) -> tuple[cst.BaseExpression, str] | None:
    """Return what is clipped, and the session's call that does it."""
    if isinstance(node, cst.Call) and source.meaning(node.func) == "tensorflow.clip_by_global_norm":
        limit = argument(node, "clip_norm", 1)
        if limit is not None and len(node.args) == 2:
            return node.args[0].value, f"clip_grad_norm({optimizer}, {source.code(limit)})"
    if isinstance(node, cst.ListComp) and isinstance(node.elt, cst.Call) and node.for_in.inner_for_in is None:
        elt = node.elt
        by_value = source.meaning(elt.func) == "tensorflow.clip_by_value" and len(elt.args) == 3
        if by_value and source.code(elt.args[0].value) == source.code(node.for_in.target):
            low, high = (literal(arg.value) for arg in elt.args[1:])
            if isinstance(low, int | float) and isinstance(high, int | float) and low == -high:
                return node.for_in.iter, f"clip_grad_value({optimizer}, {source.code(elt.args[2].value)})"
    return None


def _first_names(assign: cst.Assign) -> set[str]:
    """Return the variable assigned; of a tuple, the first one."""
    found = set()
    for target in assign.targets:
        node = target.target
        if isinstance(node, cst.Tuple | cst.List) and node.elements:
            found.add(dotted(node.elements[0].value))
        else:
            found.add(dotted(node))
    return found
