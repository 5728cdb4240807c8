"""Hybridized blocks in recorded steps: a graph of its own that also returns what the blocks inside it gave.

Hooks of blocks inside a hybridized one are called while it is traced, with symbols. Those become outputs of the graph.
MXNet 2 traces otherwise; there, recorded steps run imperatively.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ..device.versions import NUMPY_API, gluon, mx

GRAPHS = not NUMPY_API


class Seen(NamedTuple):
    """What a hook was called with while tracing."""

    layer: str
    kind: str
    place: str
    symbol: Any


class Watcher(Protocol):
    """Who wants to see the blocks' outputs, see ``recorder.Notes``."""

    traced: list[Seen] | None

    def watches(self, block: Any) -> bool:
        """Tell whether hooks stand on the block."""

    def take(self, layer: str, kind: str, place: str, array: Any) -> None:
        """Take one array."""


class _Current(threading.local):
    watcher: Watcher | None = None


current = _Current()


def watcher_of(block: Any) -> Watcher | None:
    """Return who watches a block in this thread's step, None where nobody does."""
    found = current.watcher
    return found if found is not None and mx.autograd.is_recording() and found.watches(block) else None


def build(block: Any, args: Any, watcher: Watcher) -> None:
    """Give a block whose graph was cleared one that also returns what was seen while it was traced."""
    watcher.traced = []
    try:
        inputs, outputs = block._get_graph(*args)
        seen = watcher.traced
    finally:
        watcher.traced = None
    # By the symbols themselves: a layer that is used twice gives its outputs one name.
    data = {id(each): place for place, each in enumerate(inputs)}
    own, extra, rows, at = len(outputs), [], [], {}
    for layer, kind, place, symbol in seen:
        known = id(symbol) in data or id(symbol) in at
        if known and place == "input":
            continue
        if not known:
            at[id(symbol)] = range(own + len(extra), own + len(extra) + len(symbol))
            extra += list(symbol)
        rows.append((layer, kind, place, id(symbol)))
    if extra:
        block.__dict__["_cached_graph"] = inputs, mx.sym.Group([outputs, *extra], type(outputs))
    block._build_cache(*args)
    given = {place: ~n for n, (is_data, place) in enumerate(block._cached_op_args) if is_data}
    where = {key: [given[place]] for key, place in data.items() if place in given} | at
    rows = [(*row, n) for *row, key in rows for n in where.get(key, ())]
    block._cached_op = WatchedOp(block._cached_op, own, rows)


class WatchedOp:
    """A graph that hands its further outputs to whoever watches.

    Args:
        op: the graph.
        own: how many of its outputs are the block's.
        rows: layer, kind and place, and which output it is; ``~n`` is the n-th input.
    """

    def __init__(self, op: Any, own: int, rows: list[Any]) -> None:
        self._op, self._own, self._rows = op, own, rows

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the graph; return the block's own outputs."""
        outputs = self._op(*inputs)
        given = [outputs] if isinstance(outputs, mx.nd.NDArray) else outputs
        if current.watcher is not None:
            for layer, kind, place, at in self._rows:
                current.watcher.take(layer, kind, place, inputs[~at] if at < 0 else given[at])
        return list(given[: self._own])

    def _register_op_hook(self, *arguments: Any) -> None:
        self._op._register_op_hook(*arguments)


def symbols(value: Any) -> Iterator[Any]:
    """Yield the symbols in a block's inputs or outputs."""
    if isinstance(value, mx.sym.Symbol):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from symbols(item)


def by_graph(block: Any) -> bool:
    """Tell whether a hybridized block can be seen into by a graph."""
    return GRAPHS and isinstance(block, gluon.HybridBlock) and not isinstance(block, gluon.SymbolBlock)
