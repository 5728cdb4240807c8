"""What a migrated script says: its sessions, and the calls on them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import argument, dotted
from ..source import Source
from ..training.aliases import Aliases, Key
from ..training.values import moved


class Facts:
    """A migrated file as the rules read it.

    Args:
        source: the file.

    Attributes:
        aliases: who is who.
        sessions: the groups of its sessions.
        made: the expressions that sessions are assigned to.
        handles: the expressions that ``scale_loss`` gives.
        optimizers: the groups of the optimizers that sessions step, scale losses for, or clip.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.aliases = Aliases(source)
        self.made = list(self._made())
        self.sessions = {self.aliases.of(one) for one in self.made} - {None}
        self._calls: dict[str, list[cst.Call]] = {}
        for node in source.nodes:
            if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
                continue
            if self.aliases.of(node.func.value) in self.sessions:
                self._calls.setdefault(node.func.attr.value, []).append(node)
        self.handles = {handle for call in self.calls("scale_loss") for handle in self._handle(call)}
        self.optimizers: dict[Key | None, str] = {}
        for call in self.calls("step", "clip_grad_norm", "clip_grad_value", "unscale"):
            for arg in call.args[:1]:
                self._add(arg.value)
        for call in self.calls("scale_loss"):
            for one in scaled_for(call):
                self._add(one)

    def calls(self, *methods: str) -> list[cst.Call]:
        """Return the calls of these methods on sessions."""
        return [call for method in methods for call in self._calls.get(method, ())]

    def every(self) -> list[cst.Call]:
        """Return all calls on sessions."""
        return self.calls(*self._calls)

    def regions(self) -> list[cst.With]:
        """Return the ``with`` statements that enter a session's autocast region."""
        around = [self.source.parents[call] for call in self.calls("autocast")]
        items = [self.source.parents[one] if isinstance(one, cst.IfExp) else one for one in around]
        return [one for one in map(self.source.parents.get, items) if isinstance(one, cst.With)]

    def is_handle(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is the handle of a ``scale_loss`` around it."""
        text = dotted(node)
        return any((above, text) in self.handles for above in self.source.above(node))

    def in_scope(self, calls: list[cst.Call], scope: cst.CSTNode) -> list[cst.Call]:
        """Return the calls of one function."""
        return [call for call in calls if self.source.scope(call) is scope]

    def reached(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions that a call may reach; ``encoder.train()`` no method that needs arguments."""
        found = self.aliases.reached.functions(call)
        if call.args or not dotted(call.func).endswith((".train", ".eval")):
            return found
        return [one for one in found if not any(p.default is None for p in one.params.params[1:])]

    def _made(self) -> Iterator[cst.BaseExpression]:
        for node in self.source.nodes:
            made = node.value if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
            if isinstance(made, cst.Call) and self.source.meaning(made.func) == "unifiedamp.Amp":
                assert isinstance(node, cst.Assign)
                yield node.targets[0].target

    def _handle(self, call: cst.Call) -> Iterator[tuple[cst.CSTNode, str]]:
        item = self.source.parents[call]
        with_ = self.source.parents.get(item)
        if isinstance(item, cst.WithItem) and item.asname is not None and with_ is not None:
            yield with_, dotted(item.asname.name)

    def _add(self, node: cst.BaseExpression) -> None:
        group = self.aliases.of(node)
        if group is not None:
            self.optimizers[group] = self.source.code(node)


def scaled_for(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the optimizers that a call of ``scale_loss`` names."""
    given = argument(call, "optimizers", 1)
    if isinstance(given, cst.List | cst.Tuple):
        return [element.value for element in given.elements]
    return [] if given is None else [given]


def prepared_by(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the models and optimizers that a call of ``prepare`` is given, without moves to a device."""
    return [moved(arg.value) for arg in call.args]


def optimizer_like(source: Source, node: cst.BaseExpression) -> bool:
    """Whether something is called an optimizer, or made by what is."""
    made = [source.code(assign.value) for assign in source.assigns(source.code(node))]
    return any("opt" in code.lower() for code in (source.code(node), *made) if ".prepare(" not in code)
