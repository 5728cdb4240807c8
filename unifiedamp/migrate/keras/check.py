"""What would go wrong in a migrated Keras file."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..bound import Reason, unbound_sessions
from ..nodes import dotted
from ..source import Source
from ..work import EXCHANGED
from .flags import is_float32, puts_back
from .given import works
from .makers import handed_in, makers_of
from .words import LOOP, POLICY, REWRITE, WRAPPER, calls_of

_STEPS = ("apply_gradients", "minimize", "apply")


def check(source: Source, path: str) -> list[Reason]:  # noqa: ARG001
    """Return (line, reason) for each thing in the migrated file that would train wrong or stop."""
    rules = (unbound_sessions, _left, _bare_steps, _exchanged, _policies, _twice)
    return [found for rule in rules for found in rule(source)]


def _left(source: Source) -> Iterator[Reason]:
    own = works(source)
    for call in [call for name in LOOP for call in source.methods(name)]:
        if source.scope(call) not in own:
            yield (
                source.line(call),
                f"{dotted(call.func) or source.code(call.func)}() is left: the session scales losses and gradients",
            )
    for call in [*calls_of(source, WRAPPER), *calls_of(source, REWRITE)]:
        yield source.line(call), f"{dotted(call.func)}() is left beside the session, which scales the loss by itself"


def _prepared(source: Source) -> set[str]:
    """Return the names of what a session prepared."""
    names = set()
    for assign in source.of(cst.Assign):
        value = assign.value
        if isinstance(value, cst.Call) and dotted(value.func).endswith(".prepare"):
            names |= {dotted(arg.value) for arg in value.args}
    return names - {""}


def _bare_steps(source: Source) -> Iterator[Reason]:
    prepared = _prepared(source)
    for name in _STEPS:
        for call in source.methods(name):
            owner = dotted(call.func).rpartition(".")[0]
            if owner in prepared:
                yield source.line(call), f"{owner}.{name}() is left bare: amp.step({owner}) must take its place"


def _exchanged(source: Source) -> Iterator[Reason]:
    """An optimizer of Horovod's: it exchanges gradients where the session does not see it."""
    prepared = _prepared(source)
    for assign in source.of(cst.Assign):
        name = source.meaning(assign.value.func) if isinstance(assign.value, cst.Call) else ""
        if name.rpartition(".")[2] in EXCHANGED and dotted(assign.targets[0].target) in prepared:
            yield source.line(assign), f"{name} exchanges gradients by itself: use a tf.distribute strategy"


def _policies(source: Source) -> Iterator[Reason]:
    """A policy that is set beside the session: mixed ones never, float32 only around all of it."""
    uses = [
        n for n in source.of(cst.Call) if dotted(n.func).rpartition(".")[2] in ("scope", "prepare", "autocast", "step")
    ]
    policies = calls_of(source, POLICY)
    back = {call for call in policies if puts_back(source, call)}
    for call in policies:
        scope = source.scope(call)
        ends = [one for one in back if source.scope(one) is scope and source.order[one] > source.order[call]]
        if call in back or ends:
            last = max(map(source.order.__getitem__, ends), default=0)
            if any(source.order[call] < source.order[n] < last for n in uses if source.scope(n) is scope):
                yield source.line(call), "the session is used between this policy and the one that is put back"
            continue
        inner = [source.order[n] for n in uses if source.scope(n) is scope]
        if not is_float32(source, call):
            yield source.line(call), f"{dotted(call.func)}() is left beside the session"
        elif not inner or min(inner) < source.order[call] < max(inner):
            yield source.line(call), "float32 is set where it cannot be seen which models are made under it"


def _twice(source: Source) -> Iterator[Reason]:
    """A model that is prepared again: a session binds one optimizer to it."""
    for call in source.methods("prepare"):
        assign, model = source.assignment(call), dotted(call.args[0].value) if call.args else ""
        if assign is None or not model:
            continue
        makers = [m for m in makers_of(source, model, source.scope(call)) if m is not assign]
        loops = [one for one in source.above(call) if isinstance(one, cst.For | cst.While)]
        scope = source.scope(call)
        loops = [loop for loop in loops if source.scope(loop) is scope]
        if loops and not any(source.inside(maker, loops[0]) for maker in makers):
            yield source.line(call), _again(model, "in a loop")
        for other in source.methods("prepare"):
            if other is call or source.scope(other) is not scope or dotted(other.args[0].value) != model:
                continue
            if dotted(other.func) != dotted(call.func):  # a session for each
                continue
            first, last = source.order[other], source.order[call]
            if first < last and not any(first < source.order[maker] < last for maker in makers):
                yield source.line(call), _again(model, "twice in this function")
        shared = [g for g in source.of(cst.Global) if source.scope(g) is scope]
        if any(item.name.value == model for g in shared for item in g.names) and not any(
            source.scope(maker) is scope for maker in makers
        ):
            yield source.line(call), _again(model, "each time that function is called")
        yield from _handed_twice(source, call, model)


def _handed_twice(source: Source, call: cst.Call, model: str) -> Iterator[Reason]:
    given = handed_in(source, model, source.scope(call))
    names = [(name, scope) for name, scope, _ in given]
    for name, scope, use in given:
        if names.count((name, scope)) > 1 and use is given[-1][2]:
            yield source.line(use), _again(name, "each time that function is called")


def _again(model: str, when: str) -> str:
    return f"{model} is compiled again ({when}), and a session binds one optimizer to a model: make a session for each"
