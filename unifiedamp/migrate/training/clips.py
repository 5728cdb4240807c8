"""Gradients between a backward pass and a step: clipping becomes the session's, other looks get true gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import libcst as cst

from ..nodes import argument, dotted, walk
from ..source import Statement
from ..work import Work
from .aliases import Aliases, Key
from .gates import Gates, Guard, condition, joined
from .values import parameters_of

CLIPS = {"clip_grad_norm_": ("clip_grad_norm", "max_norm"), "clip_grad_norm": ("clip_grad_norm", "max_norm")}
CLIPS |= {"clip_grad_value_": ("clip_grad_value", "clip_value")}
_MOVED = "gradients are clipped once, before the step, and no longer after each micro-batch"
EMPTIES = ("zero_", "detach_", "requires_grad_")


@dataclass
class Site:
    """A backward pass.

    Attributes:
        call: the call that it is known by.
        loss: the loss.
        place: the statement that the loss is scaled in.
        optimizers: the code of those that it trains.
        handle: what the scaled loss is called.
    """

    call: cst.Call
    loss: cst.BaseExpression
    place: Statement
    optimizers: list[str] = field(default_factory=list)
    handle: str = "scaled_loss"


class Steps(Protocol):
    """What clipping asks of a file's training loops; see ``loops.Loops``."""

    work: Work
    aliases: Aliases
    models: set[Key | None]
    optimizers: dict[Key | None, str]
    sites: list[Site]
    steps: list[cst.Call]
    plain: list[Site]
    plain_steps: list[cst.Call]
    unscales: bool

    def session_at(self, node: cst.CSTNode) -> str:
        """Return what the session is called at ``node``."""

    def code_of_step(self, call: cst.Call) -> str:
        """Return the code of the optimizer that a step is of."""


class Clips:
    """The clipping of a file's training loops.

    Args:
        loops: the loops.
    """

    def __init__(self, loops: Steps) -> None:
        self._loops, self._work, self._source = loops, loops.work, loops.work.source
        self._aliases = loops.aliases
        self._unscaled: set[Statement] = set()
        places = [site.place for site in (*loops.sites, *loops.plain)]
        self._gates = Gates(self._source, [*loops.steps, *loops.plain_steps], places)
        self._moved: dict[tuple[Statement, str], list[list[Guard]]] = {}

    def rewrite(self) -> None:
        """Rewrite all clipping that nothing else has, and give other looks at gradients true ones."""
        for call in [n for n in self._source.nodes if isinstance(n, cst.Call)]:
            if self._work.edits.covers(self._source, call):
                continue
            with self._work.blocking():
                if dotted(call.func).rpartition(".")[2] in CLIPS and call.args:
                    self._clip(call)
                elif _edits_gradients(call) or self._clips_inside(call):
                    self._look(call)
        self._put_moved()
        for node in self._source.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value == "grad" and not self._is_harmless(node):
                with self._work.blocking():
                    self._look(node)

    def _clips_inside(self, call: cst.Call) -> bool:
        """Whether a function of this file, which trains and unscales nothing itself, clips gradients."""
        for function in self._aliases.reached.functions(call):
            called = {dotted(one.func).rpartition(".")[2] for one in walk(function.body) if isinstance(one, cst.Call)}
            if called & set(CLIPS) and "unscale_" not in called and not self._holds_step(function):
                return True
        return False

    # -- one clipping --------------------------------------------------------------------------------------------

    def _clip(self, call: cst.Call) -> None:
        masters = self._masters(call)
        optimizers = [masters] if masters else self._stepped_after(call)
        if not optimizers or self._unscaled_before(call):
            return
        self._warn_scaled(call)
        limit = self._whole(call, optimizers, masters is not None or self._beside_masters(call))
        amp = self._loops.session_at(call)
        if limit is None:
            self._unscale_for(call, optimizers, masters)
            return
        name = CLIPS[dotted(call.func).rpartition(".")[2]][0]
        code = f"{amp}.{name}({optimizers[0]}, {limit})"
        step = self._gates.step_behind(call)
        if step is None:
            self._replace(call, code)
        else:
            self._move(call, step, code)

    def _move(self, call: cst.Call, step: Statement, code: str) -> None:
        """Note a clipping after each micro-batch for the step, under the conditions that it is under."""
        guards = self._gates.guards(call, step) if self._source.is_alone(call) else None
        shown = code.replace("\n", "; ")
        if guards is None:
            raise self._work.stop(call, f"{self._source.code(call)} after each micro-batch",
                                  f"clip once, before the step: `{shown}`")  # fmt: skip
        self._work.note(call, _MOVED, f"`{shown}` stands before the step; look whether that is wanted")
        self._work.edits.statement(self._gates.emptied(self._source.statement(call)))
        self._moved.setdefault((step, code), []).append(guards)

    def _put_moved(self) -> None:
        for (step, code), chains in self._moved.items():
            for chain in joined(chains):
                test = condition(self._source, chain)
                lines = [f"    {line}" for line in code.splitlines()]
                self._work.edits.before(step, "\n".join([f"if {test}:", *lines]) if test else code)

    def _unscale_for(self, call: cst.Call, optimizers: list[str], masters: str | None) -> None:
        """Keep a clipping that the session has no call for, behind ``amp.unscale``."""
        over = call.args[0].value
        group = f'[param for group in {masters}.param_groups for param in group["params"]]'
        step = self._gates.step_behind(call)
        if step is not None or self._scaled_around(call) is not None:
            code = self._source.code(call)
            code = code.replace(self._source.code(over), group, 1) if masters is not None else code
            lines = [f"{self._loops.session_at(call)}.unscale({optimizer})" for optimizer in optimizers]
            if step is not None:
                self._move(call, step, "\n".join([*lines, " ".join(code.split())]))
            else:
                self._replace(call, "\n".join([*lines, code]))
            return
        if masters is not None:
            self._work.edits.expression(over, group)
        self._unscale(call, optimizers)

    def _replace(self, call: cst.Call, code: str) -> None:
        """Put the session's call in a clipping's place; behind the scaled loss, where that one ended with it."""
        place = self._scaled_around(call)
        if place is None:
            self._work.edits.expression(call, code)
            return
        self._work.edits.statement(self._source.statement(call))
        self._work.edits.after(place, code)

    def _scaled_around(self, call: cst.Call) -> Statement | None:
        places = {site.place for site in self._loops.sites}
        return next((one for one in self._source.above(call) if isinstance(one, Statement) and one in places), None)

    def _warn_scaled(self, node: cst.CSTNode) -> None:
        """Say where the old code clips or reads gradients that are scaled still, which the new code does not."""
        if self._loops.unscales:
            return
        source, order = self._source, self._source.order
        sites = [s for s in (*self._loops.sites, *self._loops.plain) if source.scope(s.place) is source.scope(node)]
        before = sorted((s for s in sites if order[s.call] < order[node]), key=lambda site: -order[site.call])
        near = [s for s in before[:3] if not source.exclusive(s.place, node)]  # two branches, and what is nearest
        last = [s for s in near if s is near[0] or source.exclusive(s.place, near[0].place)]
        elsewhere = not sites and bool(self._loops.sites)  # a function that is called before scales the loss
        if elsewhere or any(site in self._loops.sites for site in last):
            code = " ".join(source.code(source.simple(node) or source.statement(node)).split())
            self._work.note(node, f"gradients were still scaled at `{code[:80]}`",
                            "now they are true ones there: look whether the limit was meant for those")  # fmt: skip

    def _masters(self, call: cst.Call) -> str | None:
        """Return the optimizer of Apex's ``amp.master_params(optimizer)`` that is clipped."""
        over = argument(call, "parameters", 0)
        if not isinstance(over, cst.Call) or dotted(over.func).rpartition(".")[2] != "master_params" or not over.args:
            return None
        return self._source.code(over.args[0].value)

    def _beside_masters(self, call: cst.Call) -> bool:
        """Whether the other branch of the ``if`` around clips all that the optimizer trains."""
        around = next((one for one in self._source.above(call) if isinstance(one, cst.If)), None)
        return around is not None and any(
            isinstance(one, cst.Call)
            and dotted(one.func).rpartition(".")[2] in CLIPS
            and self._masters(one) is not None
            for one in walk(around)
        )

    def _whole(self, call: cst.Call, optimizers: list[str], sure: bool) -> str | None:
        """Return the code of the limit where the call clips, by the 2-norm, all that one optimizer trains."""
        key = CLIPS[dotted(call.func).rpartition(".")[2]][1]
        limit, over = argument(call, key, 1), argument(call, "parameters", 0)
        if limit is None or over is None or len(call.args) != 2 or len(optimizers) != 1:
            return None
        model = parameters_of(over)
        if not sure and (model is None or not self.trains_all(optimizers[0], model)):
            return None
        return self._source.code(limit)

    def trains_all(self, optimizer: str, model: cst.BaseExpression) -> bool:
        """Whether an optimizer is made of all of a model's parameters."""
        made = [
            assign.value
            for node in self._source.nodes
            if isinstance(node, cst.Assign)
            for assign in (node,)
            if any(self._loops.optimizers.get(self._aliases.of(t.target)) == optimizer for t in node.targets)
            and isinstance(node.value, cst.Call)
            and "prepare" not in dotted(node.value.func)
            and not dotted(node.value.func).endswith("initialize")
        ]
        return bool(made) and all(self._made_of(value, model) for value in made)

    def _made_of(self, value: cst.BaseExpression, model: cst.BaseExpression) -> bool:
        assert isinstance(value, cst.Call)
        if not value.args:
            return False
        first = argument(value, "params", 0) or value.args[0].value
        if isinstance(first, cst.Name):
            assigns = self._source.assigns(first.value)
            first = assigns[0].value if len(assigns) == 1 else first
        over = parameters_of(first)
        return over is not None and self._aliases.of(over) == self._aliases.of(model) is not None

    # -- other looks ---------------------------------------------------------------------------------------------

    def _look(self, node: cst.CSTNode) -> None:
        """Code that reads or edits gradients sees true ones after ``amp.unscale``."""
        optimizers = self._stepped_after(node)
        if optimizers and not self._unscaled_before(node):
            if self._source.statement(node) not in self._unscaled:
                self._warn_scaled(node)
            self._unscale(node, optimizers)

    def _unscale(self, node: cst.CSTNode, optimizers: list[str]) -> None:
        statement = self._source.statement(node)
        for above in (statement, *self._source.above(statement)):
            if isinstance(above, cst.For | cst.While) and not self._holds_step(above):
                statement = above
        if any(node is not site.place and self._source.inside(node, site.place) for site in self._loops.sites):
            raise self._work.stop(
                node, "gradients are read or edited inside amp.scale_loss, where they are still scaled",
                "move it behind the with statement, and behind `amp.unscale(optimizer)` before the step",
            )  # fmt: skip
        if self._gates.step_behind(statement) is not None:
            raise self._work.stop(
                node, "gradients are read or edited after each micro-batch, before the step",
                "do it once, before the step, behind `amp.unscale(optimizer)`",
            )  # fmt: skip
        if statement in self._unscaled:
            return
        self._unscaled.add(statement)
        amp = self._loops.session_at(node)
        for optimizer in optimizers:
            self._work.edits.before(statement, f"{amp}.unscale({optimizer})")

    def _holds_step(self, node: cst.CSTNode) -> bool:
        steps = (*self._loops.steps, *self._loops.plain_steps)
        sites = (*self._loops.sites, *self._loops.plain)
        return any(self._source.inside(step, node) for step in steps) or any(
            self._source.inside(site.call, node) for site in sites
        )

    def _stepped_after(self, node: cst.CSTNode) -> list[str]:
        """Return the optimizers that step behind a place between a backward pass and a step; none elsewhere."""
        source, scope = self._source, self._source.scope(node)
        order = source.order[node]
        sites = [s for s in (*self._loops.sites, *self._loops.plain) if source.scope(s.place) is scope]
        before = [s for s in sites if source.order[s.call] < order]
        steps = [s for s in (*self._loops.steps, *self._loops.plain_steps) if source.scope(s) is scope]
        later = [s for s in steps if source.order[s] > order]
        if not later or not (before or not sites):
            return []
        last = max((source.order[s.call] for s in before), default=-1)
        if any(last < source.order[s] < order and self._straight(s, node) for s in steps):
            return []
        found = [self._loops.code_of_step(step) for step in later]
        if before:
            wanted = [code for site in before[-1:] for code in site.optimizers]
            found = [code for code in found if code in wanted] or wanted
        return list(dict.fromkeys(found))

    def _straight(self, step: cst.Call, node: cst.CSTNode) -> bool:
        """Whether a step is always taken before ``node`` is reached."""
        return self._source.in_block(node, self._source.block(self._source.statement(step))) is not None

    def _unscaled_before(self, node: cst.CSTNode) -> bool:
        """Whether the old code itself unscales between the last backward pass and a place."""
        source, scope = self._source, self._source.scope(node)
        order = source.order[node]
        sites = (*self._loops.sites, *self._loops.plain)
        last = max((source.order[s.call] for s in sites if source.order[s.call] < order), default=-1)
        return any(source.scope(c) is scope and last < source.order[c] < order for c in source.methods("unscale_"))

    def _is_harmless(self, node: cst.Attribute) -> bool:
        """Whether gradients are only emptied, or no tensor's are meant."""
        around = self._source.parents.get(node)
        if isinstance(around, cst.AssignTarget):
            assign = self._source.parents[around]
            return isinstance(assign, cst.Assign) and dotted(assign.value) == "None"
        if isinstance(around, cst.Attribute) and around.attr.value in EMPTIES:
            return True
        if dotted(node) == "torch.autograd.grad" or dotted(node).endswith("autograd.grad"):
            return True
        if self._is_input(node):
            return True
        statement = self._source.statement(node)
        return isinstance(statement, cst.If) and not _reads(statement.body)

    def _is_input(self, node: cst.Attribute) -> bool:
        """Whether a gradient is that of a tensor which the function makes: no optimizer's, so nothing unscales it."""
        source, scope, owner = self._source, self._source.scope(node), node.value
        if not isinstance(owner, cst.Name) or not any(source.scope(a) is scope for a in source.assigns(owner.value)):
            return False
        return any(source.scope(one) is scope for one in source.assigns(f"{owner.value}.requires_grad"))


def _edits_gradients(call: cst.Call) -> bool:
    """Whether a function's name says that it clips or reads gradients."""
    last = dotted(call.func).rpartition(".")[2].lower()
    return last not in CLIPS and ("clip_grad" in last or "grad_norm" in last or "clip_gradient" in last)


def _reads(node: cst.CSTNode) -> bool:
    return any(isinstance(one, cst.Attribute) and one.attr.value == "grad" for one in walk(node)) and not all(
        name in EMPTIES
        for one in walk(node)
        if isinstance(one, cst.Call)
        for name in (dotted(one.func).rpartition(".")[2],)
    )
