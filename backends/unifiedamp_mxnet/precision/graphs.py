"""Hybridized blocks: one traced graph per precision, kept with the block, so that policies can take turns.

A traced block keeps the precision it was traced in. Inside a region its graph for the region's table is put in place
for the call and what was there is put back, so that outside regions the block runs as if there were none.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from types import CodeType, FunctionType
from typing import Any

from ..device.versions import NUMPY_API, base, gluon
from . import recorded_graphs
from .casts import Table, current

_function: Any = gluon.HybridBlock._call_cached_op
_native_code: CodeType = _function.__code__
call_native = FunctionType(_native_code, _function.__globals__)
"""``HybridBlock._call_cached_op`` as MXNet has it, whatever is installed."""

FIELDS = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
FIELDS += ("_first_forward", "_flags", "_backend", "_backend_opts") if NUMPY_API else ()


def _dispatching(self, *args):  # type: ignore[no-untyped-def]
    # Runs with the globals of mxnet.gluon.block, so it says itself where to go.
    return __import__("sys").modules["unifiedamp_mxnet.precision.graphs"].call_cached_op(self, *args)


def install() -> None:
    """Send every hybridized call through :func:`call_cached_op`.

    The code of the one function is exchanged, not the attribute of its class: MXNet 2 copies methods, wrapped, into
    each class that is decorated with ``use_np``, and all the copies call this function.
    """
    _function.__code__ = _dispatching.__code__


def remove() -> None:
    """Give the function its own code back."""
    _function.__code__ = _native_code


class Graphs(tuple[Any, ...]):
    """A block's plain ``_cached_graph`` that also carries the graphs of other precisions.

    Whatever makes Gluon forget its graph (``hybridize``, ``cast``, a new child) thereby forgets these too.
    """

    variants: weakref.WeakKeyDictionary[Table, dict[str, Any]]
    recorded: weakref.WeakKeyDictionary[Table, dict[str, Any]]


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_making_lock = threading.Lock()


def _lock_of(block: Any) -> threading.RLock:
    lock = _locks.get(block)
    if lock is None:
        with _making_lock:
            lock = _locks.setdefault(block, threading.RLock())
    return lock


def call_cached_op(block: Any, *args: Any) -> Any:
    """Run a hybridized block, by the graph of the thread's table."""
    table = current.table
    with _lock_of(block):  # Another thread may be running it under another table.
        if isinstance(block, gluon.SymbolBlock):
            return call_native(block, *args)
        watcher = recorded_graphs.watcher_of(block)
        if table is None:
            return call_native(block, *args) if watcher is None else _imperatively(block, args)
        graphs = block.__dict__["_cached_graph"]
        if type(graphs) is not Graphs:
            graphs = _attach(block, args)
        return _call_variant(block, graphs, table, args, watcher)


def _attach(block: Any, args: Any) -> Graphs:
    """Trace the plain graph, which ``export`` and calls outside regions use, and make room beside it."""
    table, current.table = current.table, None
    try:
        if block._cached_op is None:
            block._build_cache(*args)
    finally:
        current.table = table
    graphs = Graphs(block._cached_graph)
    graphs.variants, graphs.recorded = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
    block.__dict__["_cached_graph"] = graphs
    return graphs


def _imperatively(block: Any, args: Any) -> Any:
    block.__dict__["_active"] = False
    try:
        return block.forward(*args)
    finally:
        block.__dict__["_active"] = True


def _call_variant(
    block: Any, graphs: Graphs, table: Table, args: Any, watcher: recorded_graphs.Watcher | None = None
) -> Any:
    fields = block.__dict__
    found = {name: fields[name] for name in FIELDS}
    variants = graphs.variants if watcher is None else graphs.recorded
    variant = variants.get(table)
    try:
        if variant is not None:
            fields.update(variant)
            return call_native(block, *args)
        block._clear_cached_op()
        with LayoutPass(table.optimize_layout):
            if watcher is not None:
                recorded_graphs.build(block, args, watcher)
            output = call_native(block, *args)
        variants[table] = {name: fields[name] for name in FIELDS}
        return output
    finally:
        fields.update(found)


class LayoutPass:
    """MXNet 2's layout pass, for the graphs built inside; the process's setting is put back.

    Args:
        on: False leaves the setting as it is, as does an MXNet without the pass.
    """

    def __init__(self, on: bool) -> None:
        self._on = on and NUMPY_API
        self._before = ctypes.c_bool(False)

    def __enter__(self) -> None:
        if self._on:
            base.check_call(base._LIB.MXGetOptimizeLayout(ctypes.byref(self._before)))
            base.check_call(base._LIB.MXSetOptimizeLayout(ctypes.c_bool(True)))

    def __exit__(self, *_: object) -> None:
        if self._on:
            base.check_call(base._LIB.MXSetOptimizeLayout(self._before))
