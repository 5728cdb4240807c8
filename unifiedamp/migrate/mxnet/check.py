"""What would go wrong in a migrated MXNet file."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..bound import Reason, unbound_sessions
from ..check.facts import Facts
from ..check.rejected import unfinished_windows
from ..nodes import dotted, walk
from ..source import Source
from .limits import scalers

_BARE = ("step", "update", "allreduce_grads")


def check(source: Source, path: str) -> list[Reason]:  # noqa: ARG001
    """Return (line, reason) for each thing in the migrated file that would train wrong or stop."""
    return [*unbound_sessions(source), *_bare(source), *scalers(source), *_records(source), *_windows(source)]


def _prepared(source: Source) -> tuple[set[str], set[str]]:
    """Return the names of models and trainers that a session prepared."""
    models, trainers = set(), set()
    for call in source.methods("prepare"):
        names = [dotted(arg.value) for arg in call.args]
        models |= set(names[:-1])
        trainers |= set(names[-1:])
    return models, trainers


def _bare(source: Source) -> Iterator[Reason]:
    trainers = _prepared(source)[1]
    for name in _BARE:
        for call in source.methods(name):
            owner = dotted(call.func).rpartition(".")[0]
            if owner in trainers:
                yield source.line(call), f"{owner}.{name}() is left bare: amp.step({owner}) must take its place"


def _records(source: Source) -> Iterator[Reason]:
    """A prepared model that is trained under ``autograd.record()`` as well: there it would not be cast."""
    models = _prepared(source)[0]
    for node in source.of(cst.With):
        items = [item.item for item in node.items if isinstance(item.item, cst.Call)]
        if not any(source.meaning(item.func) == "mxnet.autograd.record" for item in items):
            continue
        called = {dotted(n.func) for n in walk(node) if isinstance(n, cst.Call)}
        for model in sorted(called & models):
            yield source.line(node), f"{model} is trained in autograd.record() too, where the session casts nothing"


def _windows(source: Source) -> Iterator[Reason]:
    for node, what, write in unfinished_windows(Facts(source)):
        yield source.line(node), f"{what}; write {write}"
