"""Hybridized blocks: one traced graph per precision, kept with the block, so that policies can alternate.

A traced block keeps the precision it was traced in. Inside a region its graph for the region's table is set for the
call and the one before restored, so that outside regions the block runs as if there were none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from unifiedamp.backend import errors

from .._types import Attributes, HybridBlock
from ..layer_paths import is_symbol_block, prelus_below
from ..mxnet_api import CODES, NUMPY_API, NDArray, cast, dtype_code, map_tensors, mx
from ..patches import GRAPH_FIELDS, LayoutPass, call_cached_op_native, graph_locks
from . import recorded_graphs
from .casts import CastTable, current
from .emulation import is_empty
from .summed_gradients import wrongly_summed

_LOW = {CODES["float16"], CODES["bfloat16"]}

call_native: Callable[..., Any] = call_cached_op_native


def _dispatching(self, *args):  # type: ignore[no-untyped-def]  # MXNet's signature
    # Runs with the globals of mxnet.gluon.block, where this module's names are unknown.
    return __import__("sys").modules["unifiedamp_mxnet.precision.graphs"].call_cached_op(self, *args)


call_cached_op_code: CodeType = _dispatching.__code__
"""What every hybridized call runs while a region is open: :func:`call_cached_op`."""


class Graphs(tuple[Any, ...]):
    """A block's plain ``_cached_graph`` that also carries the graphs of other precisions.

    What makes Gluon drop its graph (``hybridize``, ``cast``, a new child) drops these too.
    """

    variants: weakref.WeakKeyDictionary[CastTable, Attributes]
    recorded: weakref.WeakKeyDictionary[CastTable, Attributes]
    differentiates: bool
    """Whether the gradients of the graph are right; see ``prelus_below``."""
    checked: weakref.WeakSet[CastTable]
    imperative: weakref.WeakSet[CastTable]
    """The precisions whose graphs have wrong gradients; see ``wrongly_summed``."""


def call_cached_op(block: HybridBlock, *args: object) -> Any:
    """Run a hybridized block by the graph of the thread's table."""
    table = current.table
    with graph_locks.of(block):  # Another thread may be running it under another table.
        if is_symbol_block(block):
            return call_native(block, *args)
        recorder = recorded_graphs.recorder_of(block)
        if table is None:
            return call_native(block, *args) if recorder is None else _run_imperatively(block, args)
        if table.emulation is not None and any(map(is_empty, args)):
            return _run_imperatively(block, args)
        graphs = vars(block)["_cached_graph"]
        if type(graphs) is not Graphs:
            graphs = _attach(block, args)
        if mx.autograd.is_recording() and (not graphs.differentiates or _is_imperative(block, graphs, table, args)):
            return _run_imperatively(block, args)
        return _call_variant(block, graphs, table, args, recorder)


def _attach(block: HybridBlock, args: tuple[object, ...]) -> Graphs:
    """Trace the plain graph, which ``export`` and calls outside regions use; later graphs are kept with it."""
    table, current.table = current.table, None
    try:
        if block._cached_op is None:
            # MXNet 2 traces by running operators, and those of the plain graph have weights in float32.
            block._build_cache(*map_tensors(_wide, args))
        if table is not None and table.emulation is not None and not NUMPY_API:
            _infer_shapes(block, args)
    finally:
        current.table = table
    graphs = Graphs(block._cached_graph)
    graphs.differentiates = not prelus_below(block)
    graphs.variants, graphs.recorded = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
    graphs.imperative, graphs.checked = weakref.WeakSet(), weakref.WeakSet()
    vars(block)["_cached_graph"] = graphs
    return graphs


def _wide(tensor: Any) -> Any:
    return cast(tensor, "float32") if isinstance(tensor, NDArray) and dtype_code(tensor) in _LOW else tensor


def _infer_shapes(block: HybridBlock, args: tuple[object, ...]) -> None:
    """Initialize parameters whose shapes the first batch decides: the emulation's operators infer none."""
    params = block.collect_params().values()
    deferred = [param for param in params if param._deferred_init]
    if deferred:
        block._deferred_infer_shape(*args)
        for param in deferred:
            param._finish_deferred_init()
    for param in params:
        param._var = None  # it may be a symbol of a shape that was not known


def _run_imperatively(block: HybridBlock, args: tuple[object, ...]) -> Any:
    vars(block)["_active"] = False
    try:
        return block.forward(*args)
    finally:
        vars(block)["_active"] = True


def _is_imperative(block: HybridBlock, graphs: Graphs, table: CastTable, args: tuple[object, ...]) -> bool:
    """Return whether a precision's gradients are right without its graph alone, and say so once."""
    if table not in graphs.checked:
        fields = vars(block)
        found = {name: fields[name] for name in GRAPH_FIELDS}
        try:
            block._clear_cached_op()
            with LayoutPass(table.optimize_layout):
                block._build_cache(*args)
            tensor = wrongly_summed(block._cached_graph[1])
            graphs.variants[table] = {name: fields[name] for name in GRAPH_FIELDS}
        finally:
            fields.update(found)
        graphs.checked.add(table)
        if tensor:
            graphs.imperative.add(table)
            table.warn(
                f"{type(block).__name__}: {tensor!r} is used and cast so often in the hybridized graph that MXNet sums "
                "its gradients wrongly; the block trains imperatively",
                errors.CompileWarning,
            )
    return table in graphs.imperative


def _call_variant(
    block: HybridBlock,
    graphs: Graphs,
    table: CastTable,
    args: tuple[object, ...],
    recorder: recorded_graphs.ActivationRecorder | None,
) -> Any:
    fields = vars(block)
    found = {name: fields[name] for name in GRAPH_FIELDS}
    variants = graphs.variants if recorder is None else graphs.recorded
    variant = variants.get(table)
    try:
        if variant is not None:
            fields.update(variant)
            return call_native(block, *args)
        block._clear_cached_op()
        with LayoutPass(table.optimize_layout):
            if recorder is not None:
                recorded_graphs.build(block, args, recorder)
            output = call_native(block, *args)
        variants[table] = {name: fields[name] for name in GRAPH_FIELDS}
        return output
    finally:
        fields.update(found)
