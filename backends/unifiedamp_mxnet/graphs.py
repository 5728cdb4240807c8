"""Hybridized blocks: one traced graph per precision, kept with the block, so that policies can take turns.

A traced block keeps the precision it was traced in. Inside a region its graph for the region's table is put in place
for the call and what was there is put back, so that outside regions the block runs as if there were none.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from .casts import Table, current
from .native import NUMPY_API, gluon

call_native = gluon.HybridBlock._call_cached_op

_FIELDS = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
_FIELDS += ("_first_forward", "_flags", "_backend", "_backend_opts") if NUMPY_API else ()


class Graphs(tuple[Any, ...]):
    """A block's plain ``_cached_graph`` that also carries the graphs of other precisions.

    Whatever makes Gluon forget its graph (``hybridize``, ``cast``, a new child) thereby forgets these too.
    """

    variants: weakref.WeakKeyDictionary[Table, dict[str, Any]]
    lock: threading.RLock


def call_cached_op(block: Any, *args: Any) -> Any:
    """Run a hybridized block, by the graph of the thread's table."""
    table = current.table
    graphs = block.__dict__["_cached_graph"]
    if type(graphs) is not Graphs:
        if table is None or isinstance(block, gluon.SymbolBlock):
            return call_native(block, *args)
        graphs = _attach(block, args)
    with graphs.lock:
        if table is None:
            return call_native(block, *args)
        return _call_variant(block, graphs, table, args)


def _attach(block: Any, args: Any) -> Graphs:
    """Trace the plain graph, which ``export`` and calls outside regions use, and make room beside it."""
    table, current.table = current.table, None
    try:
        if block._cached_op is None:
            block._build_cache(*args)
    finally:
        current.table = table
    graphs = Graphs(block._cached_graph)
    graphs.variants = weakref.WeakKeyDictionary()
    graphs.lock = threading.RLock()
    block.__dict__["_cached_graph"] = graphs
    return graphs


def _call_variant(block: Any, graphs: Graphs, table: Table, args: Any) -> Any:
    fields = block.__dict__
    found = {name: fields[name] for name in _FIELDS}
    variant = graphs.variants.get(table)
    if variant is None:
        block._clear_cached_op()
    else:
        fields.update(variant)
    try:
        output = call_native(block, *args)
        if variant is None:
            graphs.variants[table] = {name: fields[name] for name in _FIELDS}
        return output
    finally:
        fields.update(found)
