"""A last look at code that Apex patched: models that a loss is computed from, and that are called in no region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import libcst as cst

from ..nodes import dotted
from ..source import Source
from .aliases import Aliases, Key
from .clips import Site
from .regions import NO_FORWARD, prefixes
from .values import WRAPPERS

_WITHOUT_GRADIENTS = ("no_grad", "inference_mode", "set_grad_enabled", "inference")


def outside(
    source: Source, aliases: Aliases, models: Set[Key | None], sites: Sequence[Site], covered: Set[cst.CSTNode]
) -> Iterator[cst.Call]:
    """Yield the calls of prepared models, or of parts of them, before a scaled loss that are in no region.

    Args:
        source: the file.
        aliases: who is who in it.
        models: the groups of the prepared models.
        sites: the losses that are scaled.
        covered: the statements that are in regions.
    """
    for call in source.of(cst.Call):
        if not _computes(source, aliases, models, call) or not any(_before(source, call, site) for site in sites):
            continue
        above = list(source.above(call))
        if not any(one in covered or _has_no_gradients(one) for one in above):
            yield call


def _computes(source: Source, aliases: Aliases, models: Set[Key | None], call: cst.Call) -> bool:
    """Whether a model or a part of it is called, and something done with what it gives."""
    func = call.func.value if isinstance(call.func, cst.Subscript) else call.func
    if aliases.of(func) in models:
        return True
    last = dotted(func).rpartition(".")[2]
    if not call.args or last in NO_FORWARD or last in WRAPPERS or source.is_alone(call):
        return False
    return any(aliases.of(part) in models for part in prefixes(func))


def _before(source: Source, call: cst.Call, site: Site) -> bool:
    """Whether a call comes before a scaled loss, in the same turn of the loop that the loss is in."""
    scope = source.scope(site.place)
    if source.scope(call) is not scope or source.order[call] > source.order[site.call]:
        return False
    around = source.above(site.place)
    loop = next((one for one in around if one is scope or isinstance(one, cst.For | cst.While)), scope)
    return source.inside(call, loop) and not source.exclusive(call, site.place)


def _has_no_gradients(node: cst.CSTNode) -> bool:
    """Whether a node is a ``with torch.no_grad():`` or its like: in it Apex's casts only changed the speed."""
    calls = [item.item for item in node.items] if isinstance(node, cst.With) else []
    return any(dotted(one.func).rpartition(".")[2] in _WITHOUT_GRADIENTS for one in calls if isinstance(one, cst.Call))
