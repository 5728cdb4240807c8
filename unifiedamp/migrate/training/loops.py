"""The steps of a torch training loop: backward passes, optimizer steps and clipping become the session's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ..nodes import dotted, keywords, targets, walk
from ..source import Statement
from ..work import Work
from .aliases import Aliases, Key
from .clips import Clips, Site
from .kept import keep_gradients
from .outside import outside
from .regions import Regions, enclosing
from .uncovered import refuse

SCALED = "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"


@dataclass
class Loops:
    """A file's training loops, while they are rewritten.

    Attributes:
        work: takes the changes.
        aliases: who is who.
        models: the groups of the models.
        optimizers: group → the code that ``prepare`` has for the optimizer.
        session: node → what the session is called there; None where it cannot be seen.
        sites: the backward passes that the old API scales.
        steps: the steps that go through the old API.
        plain: the backward passes that pass it by.
        plain_steps: the steps that pass it by.
        regions: the ``with`` statements that hold autocast regions of the old code.
        unscales: the old API's gradients are true behind a backward pass, as Apex's.
        models_alone: the old API cast models alone, as Apex's O2; what comes behind them stays out of regions.
        covered: the statements that are in regions, once they are there.
        unclear: it is not known which models are trained, and said; of losses, only those are refused that others give.
    """

    work: Work
    aliases: Aliases
    models: set[Key | None]
    optimizers: dict[Key | None, str]
    session: Callable[[cst.CSTNode], str | None]
    sites: list[Site] = field(default_factory=list)
    steps: list[cst.Call] = field(default_factory=list)
    plain: list[Site] = field(default_factory=list)
    plain_steps: list[cst.Call] = field(default_factory=list)
    regions: set[cst.CSTNode] = field(default_factory=set)
    unscales: bool = False
    models_alone: bool = False
    covered: set[cst.CSTNode] = field(default_factory=set)
    unclear: bool = False

    def find_plain(self) -> None:
        """Find the backward passes and steps that pass the old API by: the branches without AMP."""
        known = {site.call for site in self.sites}
        places = {site.place for site in self.sites}
        old_steps = set(self.steps)
        for call in self.work.source.methods("step"):
            if call not in old_steps and self.is_optimizer(_receiver(call)):
                self.plain_steps.append(call)
        for call in self.work.source.methods("backward"):
            if call not in known and self._is_plain(call, places):
                self.plain.append(Site(call, _receiver(call), self.work.source.statement(call)))

    def is_optimizer(self, node: cst.CSTNode) -> bool:
        """Whether an expression is a prepared optimizer."""
        return self.aliases.of(node) in self.optimizers

    def rewrite(self, region: Callable[[Site], str | None]) -> None:
        """Rewrite what passes the old API by, clipping, and the forward passes.

        Args:
            region: the header that a backward pass's forward pass goes under; None where it has one.
        """
        for site in self.plain:
            with self.work.blocking():
                self._scale(site)
        self.plain = [site for site in self.plain if site.optimizers]
        for call in self.plain_steps:
            with self.work.blocking():
                self._step(call)
        Clips(self).rewrite()
        keep_gradients(self)
        self._regions(region)

    def code_of_step(self, call: cst.Call) -> str:
        """Return the code of the optimizer that a step is of."""
        return self.work.source.code(stepped(call))

    def session_at(self, node: cst.CSTNode) -> str:
        """Return what the session is called at ``node``.

        Raises:
            CannotMigrate: it cannot be seen there.
        """
        amp = self.session(node)
        if amp is None:
            what = f"{self.work.source.code(node)}, where the session cannot be seen"
            raise self.work.stop(node, what, "hand the session to this code, and write it by hand")
        return amp

    def trained_by(self, site: Site) -> list[str]:
        """Return the optimizers that a backward pass trains: of the branch with AMP, or those that step next."""
        beside = self._beside(site)
        if beside is not None:
            return beside.optimizers
        stepped = self._next_steps(site.place)
        only = set(self.optimizers.values())
        if stepped or len(only) > 1 or self._other_steps(site.place):
            return stepped
        return list(only)

    # -- what passes the old API by ------------------------------------------------------------------------------

    def _is_plain(self, call: cst.Call, places: set[Statement]) -> bool:
        """Whether this is ``loss.backward()`` of a tensor, and no handle's or method's of that name."""
        source = self.work.source
        receiver = _receiver(call)
        if dotted(receiver) == "self" or self.is_optimizer(receiver) or self.aliases.of(receiver) in self.models:
            return False
        if any(above in places for above in source.above(call)):
            return False
        if source.meaning(call.func) == "torch.autograd.backward":
            return True
        if any(arg.keyword is None and arg.star != "**" for arg in call.args):
            return False
        if isinstance(receiver, cst.Call) and source.code(receiver.func).endswith(".scale"):
            return False  # what a scaler scales is no loss without AMP
        if "loss" in dotted(receiver).lower():
            return True
        return not any(self.aliases.scopes.class_of(f) for f in self.aliases.reached.functions(call) if not _static(f))

    def _scale(self, site: Site) -> None:
        source, call = self.work.source, site.call
        site.optimizers = self.trained_by(site)
        if not site.optimizers:
            if self._other_steps(site.place):
                return  # trains an optimizer that never was under AMP
            raise self.work.stop(call, f"{source.code(call)}: it is not clear which optimizers it trains", SCALED)
        amp = self.session_at(call)
        if self._again(site):
            what = f"{source.code(call)} behind the scaled backward pass of the same loss"
            raise self.work.stop(call, what, "keep one of the two: their gradients would be summed")
        if (
            not source.is_alone(call)
            or _given(call) - {"retain_graph"}
            or dotted(call.func) == "torch.autograd.backward"
        ):
            raise self.work.stop(call, source.code(call), SCALED)
        if not self.sites if self.unscales else self._is_by_itself(site):
            by = "Apex" if self.unscales else "the GradScaler, which scales other losses here"
            self.work.note(call, f"{source.code(call)} was not scaled by {by}",
                           "the session scales it, so that small gradients do not vanish any more")  # fmt: skip
        beside = self._beside(site)
        handle = site.handle if beside is None else beside.handle
        kept = ", ".join(source.code(arg).rstrip(", ") for arg in call.args)
        header = f"with {amp}.scale_loss({source.code(site.loss)}, {listed(site.optimizers)}) as {handle}:"
        self.work.edits.statement(site.place, f"{header}\n    {handle}.backward({kept})")

    def _is_by_itself(self, site: Site) -> bool:
        """Whether a loss that is not scaled goes backward in a function that scales another one, whatever the flag."""
        source, scope = self.work.source, self.work.source.scope(site.place)
        if site in self.sites or self._beside(site) is not None:
            return False
        leaves = (cst.Return, cst.Continue, cst.Raise)
        ends = any(isinstance(node, leaves) for one in source.after(site.place) for node in walk(one))
        return not ends and any(source.scope(one.place) is scope for one in self.sites)

    def _again(self, plain: Site) -> bool:
        """Whether a loss has gone backward, scaled, just before: in the same block, and is not assigned in between."""
        source, loss = self.work.source, self.work.source.code(plain.loss)
        block = source.block(plain.place)
        for site in self.sites:
            if source.code(site.loss) == loss and source.block(site.place) is block:
                behind = source.after(site.place)
                between = behind[: behind.index(plain.place)] if plain.place in behind else None
                if between is not None and not any(loss in targets(one) for one in between):
                    return True
        return False

    def _step(self, call: cst.Call) -> None:
        source = self.work.source
        if call.args or not source.is_alone(call):
            raise self.work.stop(call, source.code(call), "`amp.step(optimizer)`, which takes no closure")
        optimizer = source.code(_receiver(call))
        if not self.unscales and self._is_scaled_at(call):
            self.work.note(call, f"{source.code(call)} applied scaled gradients",
                           "the session applies true ones: look at the learning rate")  # fmt: skip
        self.work.edits.statement(source.statement(call), f"{self.session_at(call)}.step({optimizer})")

    def _is_scaled_at(self, call: cst.Call) -> bool:
        """Whether a step that passes the old API by comes behind a loss that it scales, not in the flag's branch."""
        source, scope = self.work.source, self.work.source.scope(call)
        plain, scaled = ([s for s in sites if source.scope(s.place) is scope] for sites in (self.plain, self.sites))
        before = [s for s in (*plain, *scaled) if source.order[s.place] < source.order[call]]
        if before and self._is_by_itself(max(before, key=lambda site: source.order[site.place])):
            return False
        flags = {test for site in scaled for test in self._tests(site.place)}
        return bool(scaled) and not (plain and flags & self._tests(call))

    def _tests(self, node: cst.CSTNode) -> set[str]:
        """Return the conditions around a node, without their ``not``."""
        ifs = [above for above in self.work.source.above(node) if isinstance(above, cst.If)]
        return {self.work.source.code(one.test).strip().removeprefix("not ") for one in ifs}

    def _beside(self, plain: Site) -> Site | None:
        """Return the scaled loss in the other branch of an ``if`` around a backward pass that is not scaled."""
        source = self.work.source
        for above in source.above(plain.place):
            if isinstance(above, cst.FunctionDef):
                return None
            if isinstance(above, cst.If):
                inside = [s for s in self.sites if s is not plain and s.optimizers and source.inside(s.place, above)]
                inside = [s for s in inside if source.exclusive(s.place, plain.place)]
                if len({tuple(site.optimizers) for site in inside}) == 1:
                    return inside[0]
        return None

    def _next_steps(self, place: Statement) -> list[str]:
        """Return the prepared optimizers whose steps come next, until another loss goes backward."""
        return [self.work.source.code(receiver) for receiver in self._following(place) if self.is_optimizer(receiver)]

    def _other_steps(self, place: Statement) -> bool:
        """Whether what steps next are optimizers that were never prepared."""
        receivers = self._following(place)
        return bool(receivers) and not any(self.is_optimizer(receiver) for receiver in receivers)

    def _following(self, place: Statement) -> list[cst.BaseExpression]:
        """Return what steps behind ``place``, each once, until another loss goes backward."""
        source = self.work.source
        backward = [site.call for site in (*self.sites, *self.plain)]
        steps = self._all_steps()
        position: Statement | None = place
        while position is not None:
            found: list[cst.BaseExpression] = []
            for later in source.after(position):
                if found and any(source.inside(call, later) for call in backward):
                    break
                found += [stepped(call) for call in steps if source.inside(call, later)]
            if found:
                seen = {source.code(one): one for one in reversed(found)}
                return list(reversed(seen.values()))
            position = enclosing(source, position)
        return []

    def _all_steps(self) -> list[cst.Call]:
        return [
            call
            for call in self.work.source.methods("step")
            if call in self.steps or _optimizer_like(dotted(_receiver(call))) or self.is_optimizer(_receiver(call))
        ]

    # -- forward passes ------------------------------------------------------------------------------------------

    def _regions(self, region: Callable[[Site], str | None]) -> None:
        source = self.work.source
        ends = [site.place for site in (*self.sites, *self.plain)]
        ends += [source.statement(call) for call in (*self.steps, *self.plain_steps)]
        regions = Regions(
            self.work, self.aliases, self.models, ends, self.regions, self.session, models_alone=self.models_alone
        )
        for site in sorted((*self.sites, *self.plain), key=lambda site: source.order[site.place]):
            header = None
            with self.work.blocking():
                header = region(site)
            if header is None:
                continue
            if regions.computes(site.loss):
                what = f"the loss {source.code(site.loss)} is not assigned before it is scaled"
                self.work.block(site.call, what, f"compute it in `{header}`, in a line before")
            elif not regions.cover(site.loss, site.place, header):
                for each in [one for one in regions.uncovered if one.function is not None or not self.unclear]:
                    refuse(self.work, self.aliases, self.models, site, each, header)
            regions.uncovered.clear()
        regions.emit()
        self.covered = regions.covered
        if self.unscales and not self.work.blockers:  # Apex; torch's own code says itself what is in a region
            for call in outside(source, self.aliases, self.models, self.sites, regions.covered):
                if not self.work.edits.covers(source, call):
                    what = f"{source.code(call)} is in no region, and a loss behind it is scaled"
                    self.work.block(call, what, "compute in `with amp.autocast():` all that the loss is computed from")


def listed(optimizers: Sequence[str]) -> str:
    """Return the code of one optimizer, or of a list."""
    return optimizers[0] if len(optimizers) == 1 else f"[{', '.join(optimizers)}]"


def _receiver(call: cst.Call) -> cst.BaseExpression:
    assert isinstance(call.func, cst.Attribute)
    return call.func.value


def stepped(call: cst.Call) -> cst.BaseExpression:
    """Return the optimizer of ``optimizer.step()`` or ``scaler.step(optimizer)``."""
    return call.args[0].value if call.args and "optim" not in dotted(_receiver(call)) else _receiver(call)


def _given(call: cst.Call) -> set[str]:
    """Return the keywords of a call, without those that its caller was given: ``**kwargs``."""
    passed = {"*"} if all(arg.star != "*" for arg in call.args) else set[str]()
    return keywords(call) - passed


def _optimizer_like(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return last.startswith(("opt", "optim")) or "optim" in last


def _static(function: cst.FunctionDef) -> bool:
    return any(dotted(one.decorator).endswith("staticmethod") for one in function.decorators)
