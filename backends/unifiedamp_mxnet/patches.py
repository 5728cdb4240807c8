"""Every change made to MXNet's own objects, how long it lasts, and how it is undone.

While a region is open on any thread:
    ``_imperative_invoke``, ``_symbol_creator``, ``Function.__call__`` and the code of ``HybridBlock._call_cached_op``
    (:class:`DispatcherPatch`).
During one call of a hybridized block inside a region:
    the attributes that hold its graph (``GRAPH_FIELDS``, by ``precision.graphs``); while a graph is built, MXNet 2's
    layout pass (:class:`LayoutPass`).
From ``amp.prepare`` to ``amp.close``:
    ``forward`` or ``hybrid_forward`` of a block (``precision.layers.BoundaryCast``); ``step``, ``update``,
    ``allreduce_grads`` and the AMP scaler of a Trainer (:class:`AttributePatch`); ``grad_req="add"`` of its parameters
    (:class:`OverwriteGradients`); ``aggregate_num`` of its optimizer, if tuned (:func:`aggregate_updates`).
During one update:
    ``rescale_grad`` of the optimizer (:class:`AttributePatch`), and the pairs of master weight and state in its
    updaters (``training.master_weights``).
While a step is recorded:
    hooks of blocks, and their ``_active`` (``recording.recorder.StepRecorder.stop``).
While MXNet is imported:
    aliases in ``numpy`` (``numpy_compat``).
While this backend is loaded, in MXNet 2:
    ``mxnet.operator.context``, which warns of itself for each operator in Python (:func:`make_operators_by_device`).

Three changes stay, because the user asked for them: the dtype of parameters under a policy with ``param_dtype``, an
optimizer's ``multi_precision`` under ``master_weights=True``, and a Trainer's ``update_on_kvstore=False``.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ._types import Block, Parameter, Trainer, Undo
from .mxnet_api import NUMPY_API, base, create_native, gluon, invoke_native, mx, nd_register, symbol_register

# -- the dispatcher ----------------------------------------------------------------------------------------------------

Function: Any = importlib.import_module("mxnet._ffi.function").Function
"""MXNet's packed functions, by which ``mx.np`` calls operators."""
call_function_native: Callable[..., Any] = Function.__call__

_patched: Any = gluon.HybridBlock._call_cached_op
_native_code: CodeType = _patched.__code__
call_cached_op_native = FunctionType(_native_code, _patched.__globals__)
"""``HybridBlock._call_cached_op`` as MXNet has it, whatever is installed."""

GRAPH_FIELDS: tuple[str, ...] = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
"""Attributes of a hybridized block that belong to its graph."""
GRAPH_FIELDS += ("_first_forward", "_flags", "_backend", "_backend_opts") if NUMPY_API else ()


class Replacements(NamedTuple):
    """The functions that replace MXNet's four; each takes the same arguments."""

    imperative_invoke: Callable[..., Any]
    symbol_creator: Callable[..., Any]
    call_function: Callable[..., Any]
    call_cached_op: CodeType


class DispatcherPatch:
    """Replaces MXNet's dispatching functions while a region is open on any thread.

    Of ``_call_cached_op`` the code is exchanged, not the attribute of its class: MXNet 2 copies methods, wrapped, into
    each class that is decorated with ``use_np``, and all the copies call this function.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[object] = set()

    def enter(self, region: object, replacements: Replacements) -> None:
        """Install the replacements for a region, unless another one has. Idempotent."""
        with self._lock:
            self._open.add(region)
            if len(self._open) == 1:
                nd_register._imperative_invoke = replacements.imperative_invoke
                symbol_register._symbol_creator = replacements.symbol_creator
                _patched.__code__ = replacements.call_cached_op
                Function.__call__ = replacements.call_function

    def leave(self, region: object) -> None:
        """Restore MXNet's functions when no other region is open. Idempotent."""
        with self._lock:
            if region not in self._open:
                return
            if len(self._open) == 1:
                nd_register._imperative_invoke = invoke_native
                symbol_register._symbol_creator = create_native
                _patched.__code__ = _native_code
                if "__call__" in vars(Function):
                    del Function.__call__
            self._open.discard(region)


dispatcher = DispatcherPatch()
"""The process's."""


class GraphLocks:
    """One lock for each hybridized block: threads must not exchange its graph at once."""

    def __init__(self) -> None:
        self._locks: weakref.WeakKeyDictionary[Block, threading.RLock] = weakref.WeakKeyDictionary()
        self._making = threading.Lock()

    def of(self, block: Block) -> threading.RLock:
        """Return the lock of a block."""
        lock = self._locks.get(block)
        if lock is None:
            with self._making:
                lock = self._locks.setdefault(block, threading.RLock())
        return lock


graph_locks = GraphLocks()
"""The process's."""


class LayoutPass:
    """MXNet 2's layout pass, for the graphs built inside; the process's setting is restored.

    Args:
        on: False leaves the setting unchanged, as does an MXNet without the pass.
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


# -- one object --------------------------------------------------------------------------------------------------------


class AttributePatch:
    """Attributes of one object, set from :meth:`apply` to :meth:`undo`.

    Args:
        obj: a Trainer, an optimizer or a block.
        values: name → value. A Gluon block does not see them as children or parameters.
    """

    def __init__(self, obj: object, values: Mapping[str, object]) -> None:
        self._attributes, self._values = vars(obj), values
        self._found = {name: self._attributes[name] for name in values if name in self._attributes}
        self._applied = False

    def apply(self) -> None:
        """Set the attributes."""
        self._applied = True
        self._attributes.update(self._values)

    def undo(self) -> None:
        """Restore what was found, and remove what was not there. Idempotent."""
        if not self._applied:
            return
        for name in self._values.keys() - self._found.keys():
            self._attributes.pop(name, None)
        self._attributes.update(self._found)
        self._applied = False


def patched(obj: object, **values: object) -> AttributePatch:
    """Set attributes of one object; return the patch, to be undone."""
    patch = AttributePatch(obj, values)
    patch.apply()
    return patch


class OverwriteGradients:
    """Parameters whose ``grad_req`` is "add" have it set to "write", so that backward passes overwrite gradients.

    MXNet's own "add" loses the gradient of a parameter that is cast to bfloat16: its ``amp_cast`` writes zeros there.

    Args:
        parameters: of one Trainer.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._changed: list[Parameter] = []

    def apply(self) -> None:
        """Set "write". Called at each region, since users may set "add" at any time."""
        for param in [param for param in self._parameters if param._grad_req == "add"]:
            param.grad_req = "write"
            self._changed.append(param)

    def undo(self) -> None:
        """Set "add" again where it was."""
        for param in self._changed:
            param.grad_req = "add"
        self._changed.clear()


def aggregate_updates(trainer: Trainer, count: int) -> Undo:
    """Make a Trainer update up to ``count`` parameters by one kernel; return the undo."""
    optimizer, updaters = trainer._optimizer, list(trainer._updaters)
    before, each_before = optimizer.aggregate_num, [updater.aggregate_updates for updater in updaters]

    def write(number: int, flags: Sequence[bool]) -> None:
        optimizer.aggregate_num = number
        for updater, flag in zip(updaters, flags, strict=True):
            updater.aggregate_updates = flag

    write(count, [True] * len(updaters))
    return lambda: write(before, each_before)


# -- operators in Python -----------------------------------------------------------------------------------------------


def make_operators_by_device() -> None:
    """Let MXNet 2 make the device of an operator in Python without its own deprecated function, which warns."""
    if NUMPY_API:
        mx.operator.context = types.SimpleNamespace(Context=mx.device.Device)
