"""Batches in, results out."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from unifiedamp.backend import errors, host_array

from .._types import Array, Context, HostArray
from ..mxnet_api import BFLOAT16, NDArray, call, dtype_name, from_numpy, mx


def is_array(value: object) -> TypeGuard[Array]:
    """Return whether a value is an array of MXNet's, of either API."""
    return isinstance(value, NDArray)


def to_native(array: object, context: Context, dtype: str | None = None) -> Array:
    """Return ``array`` as an array on ``context``; MXNet's own stay where they are.

    Args:
        array: see ``Device.to_native``.
        context: where the array is to be.
        dtype: its dtype; None makes float32 of floating-point arrays with more bits, unless they are MXNet's own.

    Raises:
        WrongObjectError: numpy cannot read the array, or MXNet has no arrays of its dtype (text, Python objects).
    """
    if is_array(array):
        return array if dtype in (None, dtype_name(array)) else _cast(array, dtype)
    plain = _read(array)
    wanted = dtype or _default_dtype(plain.dtype)
    if wanted is not None:
        plain = plain.astype("float32" if wanted == "bfloat16" else wanted, copy=False)
    try:
        native = from_numpy(plain, context)
    except KeyError:  # a dtype that is not in MXNet's list
        raise errors.WrongObjectError(
            f"amp.to_native: MXNet has no arrays of numpy's dtype {str(plain.dtype)!r}; make it an array of numbers in "
            "float32, int32 or int64"
        ) from None
    return _cast(native, wanted) if wanted == "bfloat16" else native


def _read(array: Any) -> HostArray:
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
        return host_array(array)
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise errors.WrongObjectError(
            f"amp.to_native: MXNet reads other frameworks' arrays by way of numpy, and numpy cannot read this "
            f"{type(array).__name__}: {error}; pass it as a float32 array in the memory of the host"
        ) from error


def _default_dtype(dtype: np.dtype[Any]) -> str | None:
    """Return the dtype that arrays of a numpy dtype are converted to; None leaves them as they are."""
    if dtype.name == "bfloat16":  # an extension of numpy (ml_dtypes)
        return "bfloat16"
    return "float32" if dtype.kind == "f" and dtype.itemsize > 2 else None


def _cast(array: Array, dtype: str | None) -> Array:
    with mx.util.np_shape(True):  # MXNet 1 casts no single number otherwise
        result: Array = call("Cast", [array], dtype=dtype)
    return result


def to_numpy(tensor: object) -> HostArray:
    """Return an array as numpy; bfloat16 is returned as float32."""
    if not is_array(tensor):
        return np.asarray(tensor)
    if tensor.dtype == BFLOAT16:
        tensor = _cast(tensor, "float32")
    return tensor.asnumpy()
