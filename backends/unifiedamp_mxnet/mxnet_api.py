"""MXNet itself, one name for what differs between its versions: modules, arrays, raw operator calls, op handles."""

from __future__ import annotations

import copy as copying
import ctypes
import functools
import importlib
import operator
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ._types import Array, Context, HostArray
from .numpy_compat import import_mxnet

T = TypeVar("T")

mx: Any = import_mxnet()
base: Any = importlib.import_module("mxnet.base")
nd_register: Any = importlib.import_module("mxnet.ndarray.register")
symbol_register: Any = importlib.import_module("mxnet.symbol.register")
gluon: Any = mx.gluon
autograd: Any = mx.autograd

NUMPY_API: bool = not mx.__version__.startswith("1.")
"""MXNet 2: Gluon computes on ``mx.np`` arrays and traces by running ``forward``."""

tracing_arrays: Callable[[], bool] = (
    importlib.import_module("mxnet._deferred_compute").is_deferred_compute if NUMPY_API else lambda: False
)
"""Whether this thread traces a block by running it, as MXNet 2 does."""

amp_lists: Any = importlib.import_module("mxnet.amp.lists" if NUMPY_API else "mxnet.contrib.amp.lists")
upstream: Any = importlib.import_module("mxnet.amp.amp" if NUMPY_API else "mxnet.contrib.amp.amp")

NDArray: Any = nd_register.NDArrayBase
Symbol: Any = symbol_register.SymbolBase
NumpyArray: Any = mx.np.ndarray
invoke_native: Callable[..., Any] = nd_register._imperative_invoke
create_native: Callable[..., Any] = symbol_register._symbol_creator

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
CODES = {"float32": 0, "float16": 2, "bfloat16": 12}
"""MXNet's numbers for the dtypes that a policy can name."""
_NAMES = {code: name for name, code in CODES.items()}


@functools.cache
def op_handle(name: str) -> int | None:
    """Return the handle of an operator, or None where this MXNet has none of that name. Aliases share one handle."""
    handle = base.OpHandle()
    if base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)) != 0:
        return None
    found: int | None = handle.value
    return found


def dtype_code(array: Array, _get: Callable[..., int] = base._LIB.MXNDArrayGetDType) -> int:
    """Return MXNet's number for an array's dtype."""
    code = ctypes.c_int(-1)
    _get(array.handle, ctypes.byref(code))
    return code.value


context_of: Callable[[Array], Context] = operator.attrgetter("device" if NUMPY_API else "context")
"""An array's context, by the name that this MXNet has for it."""

current_context: Callable[[], Context] = mx.device.current_device if NUMPY_API else mx.context.current_context


def dtype_name(tensor: Array) -> str:
    """Return an array's dtype name, "bfloat16" included."""
    return _NAMES.get(dtype_code(tensor)) or np.dtype(tensor.dtype).name


def param_dtype(dtype: object) -> str:
    """Return the name of a dtype as a Parameter holds it (a string, a type or a numpy dtype)."""
    if isinstance(dtype, str):
        return dtype
    return "bfloat16" if np.dtype(dtype) == BFLOAT16 else np.dtype(dtype).name  # type: ignore[call-overload]  # whatever numpy takes


def call(name: str, arrays: Sequence[Array], out: Array | list[Array] | None = None, **attributes: Any) -> Any:
    """Run one operator on arrays, past the dispatcher."""
    is_np = isinstance(arrays[0], NumpyArray)
    return invoke_native(op_handle(name), arrays, list(attributes), list(attributes.values()), out, is_np, False)


def cast(tensor: T, dtype: str) -> T:
    """Cast an array or a symbol by ``amp_cast``, which leaves integers alone and passes gradients back."""
    return _unary("amp_cast", tensor, ("dtype",), (dtype,))


def convert(tensor: T, dtype: str) -> T:
    """Cast an array or a symbol by ``Cast``, which takes float64 too and passes gradients back."""
    return _unary("Cast", tensor, ("dtype",), (dtype,))


def copy(tensor: T) -> T:
    """Copy an array or a symbol, which passes gradients back; a copy has MXNet's own layout, not oneDNN's."""
    return _unary("_copy", tensor)


def own_layout(tensor: T) -> T:
    """Copy an array or a symbol by an operator that oneDNN has no part in, bit for bit; return a scalar array itself.

    Not ``_copy``, which a graph may leave out, nor a product with 1: MXNet 2 makes zeros of subnormal numbers there.
    """
    if isinstance(tensor, NDArray) and not tensor.ndim:
        return tensor  # oneDNN has no layout for it; a symbol of MXNet 1 is never one
    return _unary("slice_axis", tensor, ("axis", "begin", "end"), (0, 0, None))


def custom(op_type: str, tensors: Sequence[T], **attributes: object) -> T:
    """Run an operator that was registered by ``mx.operator.register`` on arrays, or add it to a graph of symbols."""
    names, values = ["op_type", *attributes], [op_type, *map(str, attributes.values())]
    return _run("Custom", tensors, names, values, op_type)


def _unary(op: str, tensor: T, keys: Sequence[str] = (), values: Sequence[object] = ()) -> T:
    return _run(op, [tensor], keys, values, op.strip("_"))


def _run(op: str, tensors: Sequence[T], keys: Sequence[str], values: Sequence[object], hint: str) -> T:
    """Run an operator past the dispatcher; ``hint`` begins its name in a graph."""
    result: T
    handle = op_handle(op)
    if isinstance(tensors[0], NDArray):
        is_np = isinstance(tensors[0], NumpyArray)
        result = invoke_native(handle, list(tensors), keys, values, None, is_np, False)
        return result
    name = mx.name.NameManager._current.value.get(None, hint)
    is_np = isinstance(tensors[0], mx.sym.np._Symbol)
    result = create_native(handle, list(tensors), None, list(keys), list(values), name, is_np, False)
    return result


def from_numpy(array: HostArray, context: Context) -> Array:
    """Return a copy of a numpy array on ``context``, its dtype kept; an ``mx.np`` array where those are in use."""
    # Not mx.nd.array: it makes float32 of everything, and asks scipy for a class that is deprecated there.
    tensor: Array = mx.nd.empty(array.shape, context, array.dtype)
    tensor._sync_copyfrom(np.ascontiguousarray(array).reshape(array.shape))
    return tensor.as_np_ndarray() if mx.util.is_np_array() else tensor


def map_tensors(function: Callable[[Any], object], value: object) -> Any:
    """Apply ``function`` to every array and symbol in nested lists, tuples and mappings, which keep their classes."""
    if isinstance(value, (NDArray, Symbol)):
        return function(value)
    if isinstance(value, MutableMapping):
        mapped = copying.copy(value)
        mapped.update({key: map_tensors(function, item) for key, item in value.items()})
        return mapped
    if isinstance(value, (list, tuple)):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
