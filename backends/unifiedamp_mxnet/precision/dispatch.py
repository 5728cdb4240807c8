"""The dispatcher: three functions that every operator call of MXNet ends in, and the hybridized block's one.

MXNet's own ``amp.init`` replaces about 1,600 module attributes for the process and cannot take them back. All of those
functions look up their last step when they run, so replacing that step alone gives the same casts for four attributes,
cheap enough to put in when the first region opens and to take out when the last one closes.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from ..device.versions import NDArray, create_native, invoke_native, nd_register, op_handle, symbol_register
from . import graphs
from .casts import current
from .operations import KEEP, ByAttribute

_Function: Any = importlib.import_module("mxnet._ffi.function").Function
_call_native = _Function.__call__

# The inputs of these come last in the call; elsewhere an array in the last place is the output to write to.
_INPUT_LAST = frozenset(
    ("where", "kron", "solve", "polyval", "atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "hstack", "vstack",
     "dstack", "share_memory")
)  # fmt: skip


def _ffi_handles() -> dict[int, tuple[Any, int]]:
    """Return id of a packed function → it and the handle of the operator that it runs."""
    found: dict[int, tuple[Any, int]] = {}
    for module, prefix in (("numpy", "_npi_"), ("numpy_extension", "_npx_")):
        try:
            namespace = vars(importlib.import_module(f"mxnet.ndarray.{module}._api_internal"))
        except ImportError:
            continue
        for name, function in namespace.items():
            handle = op_handle(prefix + name) if isinstance(function, _Function) else None
            if handle is not None:
                found[id(function)] = (function, handle)
    return found


_FFI = _ffi_handles()


def _invoke(handle: int, arrays: Any, keys: Any, vals: Any, out: Any, is_np: bool, is_list: bool) -> Any:
    table = current.table
    if table is not None and out is None:
        rule = table.rule(handle, keys, vals)
        if rule is not KEEP:
            arrays = table.cast_arrays(handle, rule, arrays)
    return invoke_native(handle, arrays, keys, vals, out, is_np, is_list)


def _create(
    handle: int, args: Any, kwargs: Any, keys: Any, vals: Any, name: str, is_np: bool, is_list: bool = False
) -> Any:
    table = current.table
    if table is not None:
        rule = table.rule(handle, keys, vals)
        if rule is not KEEP and args:
            args = table.cast_symbols(handle, rule, list(args))
        elif rule is not KEEP and kwargs:
            kwargs = dict(zip(kwargs, table.cast_symbols(handle, rule, list(kwargs.values())), strict=True))
    return create_native(handle, args, kwargs, keys, vals, name, is_np, is_list)


def _call(self: Any, *args: Any) -> Any:
    table = current.table
    if table is not None:
        known = _FFI.get(id(self))
        if known is not None:
            args = _cast_packed(table, known[1], self.__name__, args)
    return _call_native(self, *args)


def _cast_packed(table: Any, handle: int, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the arrays in a packed call, whose attributes stand between them without names."""
    rule = table.rules.get(handle, table.default)
    if type(rule) is ByAttribute:
        rule = next((rule.rules[arg] for arg in args if type(arg) is str and arg in rule.rules), rule.otherwise)
    if rule is KEEP:
        return args
    places = [i for i, arg in enumerate(args) if isinstance(arg, NDArray)]
    writes = len(places) > 1 and places[-1] == len(args) - 1 and name not in _INPUT_LAST
    if writes or not places:
        return args
    cast = list(args)
    for place, array in zip(places, table.cast_arrays(handle, rule, [args[i] for i in places]), strict=True):
        cast[place] = array
    return tuple(cast)


class _Installed:
    """Knows the open regions of all threads; the first puts the dispatcher in, the last takes it out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[object] = set()

    def enter(self, region: object) -> None:
        """Put the dispatcher in for a region. Idempotent."""
        with self._lock:
            self._open.add(region)
            if len(self._open) == 1:
                nd_register._imperative_invoke = _invoke
                symbol_register._symbol_creator = _create
                graphs.install()
                _Function.__call__ = _call

    def leave(self, region: object) -> None:
        """Take it out when no other region is open. Idempotent."""
        with self._lock:
            if region not in self._open:
                return
            if len(self._open) == 1:
                nd_register._imperative_invoke = invoke_native
                symbol_register._symbol_creator = create_native
                graphs.remove()
                if "__call__" in vars(_Function):
                    del _Function.__call__
            self._open.discard(region)


installed = _Installed()
