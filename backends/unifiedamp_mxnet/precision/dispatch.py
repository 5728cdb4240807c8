"""The dispatcher: three functions that every operator call of MXNet ends in, and that of hybridized blocks.

MXNet's own ``amp.init`` replaces about 1,600 module attributes for the process and cannot take them back. All of those
functions look up their last step when they run, so replacing that step alone gives the same casts for four attributes,
cheap enough to install when the first region opens and to take out when the last one closes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from .._types import Array, Symbol
from ..mxnet_api import NDArray, create_native, invoke_native, op_handle
from ..patches import Function, Replacements, call_function_native, dispatcher
from .casts import CastTable, current
from .graphs import call_cached_op_code
from .operations import KEEP, ByAttribute
from .zero_gradients import FIRST_DETACHED, without_history

# The inputs of these come last in the call; elsewhere an array in the last place is the output to write to.
_INPUT_LAST = frozenset(
    ("where", "kron", "solve", "polyval", "atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "hstack", "vstack",
     "dstack", "share_memory")
)  # fmt: skip

PACKED_LINEAR = ("num_hidden", "no_bias", "flatten")
"""What follows the arrays in a packed call of ``fully_connected``."""


def _ffi_handles() -> dict[int, tuple[object, int]]:
    """Return id of a packed function → it and the handle of the operator that it runs."""
    found: dict[int, tuple[object, int]] = {}
    for module, prefix in (("numpy", "_npi_"), ("numpy_extension", "_npx_")):
        try:
            namespace = vars(importlib.import_module(f"mxnet.ndarray.{module}._api_internal"))
        except ImportError:
            continue
        for name, function in namespace.items():
            handle = op_handle(prefix + name) if isinstance(function, Function) else None
            if handle is not None:
                found[id(function)] = (function, handle)
    return found


_FFI: Mapping[int, tuple[object, int]] = _ffi_handles()


def _invoke(
    handle: int,
    arrays: list[Array],
    keys: Sequence[str],
    vals: Sequence[object],
    out: Array | None,
    is_np: bool,
    is_list: bool,
) -> Any:
    table = current.table
    if table is not None and out is None:
        if handle in FIRST_DETACHED:
            arrays = without_history(handle, arrays, vals)
        rule = table.rule(handle, keys, vals)
        if table.emulation is not None and table.emulation.takes(rule, arrays):

            def compute(wide: list[Any]) -> Any:
                return invoke_native(handle, wide, keys, vals, None, is_np, is_list)

            return table.emulation.run(handle, arrays, dict(zip(keys, vals, strict=True)), compute)
        if rule is not KEEP:
            arrays = table.cast_arrays(handle, rule, arrays)
    return invoke_native(handle, arrays, keys, vals, out, is_np, is_list)


def _create(
    handle: int,
    args: Sequence[Symbol] | None,
    kwargs: dict[str, Symbol] | None,
    keys: Sequence[str],
    vals: Sequence[object],
    name: str,
    is_np: bool,
    is_list: bool = False,
) -> Any:
    table = current.table
    if table is not None and (args or kwargs):
        rule = table.rule(handle, keys, vals)
        names, symbols = (None, list(args)) if args else (list(kwargs), list(kwargs.values()))  # type: ignore[arg-type,union-attr]  # one of both is there

        def compute(inputs: list[Any]) -> Any:
            by_name = None if names is None else dict(zip(names, inputs, strict=True))
            positional = inputs if names is None else args
            return create_native(handle, positional, by_name, keys, vals, name, is_np, is_list)

        if table.emulation is not None and table.emulation.takes(rule, symbols):
            return table.emulation.run(handle, symbols, dict(zip(keys, vals, strict=True)), compute)
        return compute(symbols if rule is KEEP else table.cast_symbols(handle, rule, symbols))
    return create_native(handle, args, kwargs, keys, vals, name, is_np, is_list)


def _call(self: Any, *args: object) -> Any:
    table = current.table
    if table is not None:
        known = _FFI.get(id(self))
        if known is not None:
            return _call_packed(self, table, known[1], args)
    return call_function_native(self, *args)


def _call_packed(function: Any, table: CastTable, handle: int, args: tuple[Any, ...]) -> Any:
    """Run a packed call with its arrays cast; its attributes are between them, without names."""
    rule: Any = table.rules.get(handle, table.default)
    if type(rule) is ByAttribute:
        rule = rule.choose_packed(args)
    places = [i for i, arg in enumerate(args) if isinstance(arg, NDArray)]
    writes = len(places) > 1 and places[-1] == len(args) - 1 and function.__name__ not in _INPUT_LAST
    if writes or not places or (rule is KEEP and handle not in FIRST_DETACHED):
        return call_function_native(function, *args)
    arrays = without_history(handle, [args[i] for i in places], [arg for arg in args if type(arg) is str])

    def compute(inputs: list[Any]) -> Any:
        given = list(args)
        for place, array in zip(places, inputs, strict=True):
            given[place] = array
        return call_function_native(function, *given)

    if table.emulation is not None and table.emulation.takes(rule, arrays):
        attributes = [arg for arg in args if not isinstance(arg, NDArray)]
        return table.emulation.run(handle, arrays, dict(zip(PACKED_LINEAR, attributes, strict=False)), compute)
    return compute(table.cast_arrays(handle, rule, arrays))


REPLACEMENTS = Replacements(_invoke, _create, _call, call_cached_op_code)


def install(region: object) -> None:
    """Install the dispatcher for a region. Idempotent."""
    dispatcher.enter(region, REPLACEMENTS)


def uninstall(region: object) -> None:
    """Take it out when no other region is open. Idempotent."""
    dispatcher.leave(region)
