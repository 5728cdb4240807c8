"""Batches in, results out, and the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifiedamp.backend import errors

from .versions import BFLOAT16, NDArray, base, call, dtype_name, from_numpy, mx


def to_native(array: Any, context: Any, dtype: str | None = None) -> Any:
    """Return ``array`` as an array on ``context``; MXNet's own stay where they are.

    Args:
        array: see ``Backend.to_native``.
        context: where the array is to be.
        dtype: its dtype; None makes float32 of floating-point arrays with more bits, unless they are MXNet's own.

    Raises:
        WrongObjectError: numpy cannot read the array, or MXNet has no arrays of its dtype (text, Python objects).
    """
    if isinstance(array, NDArray):
        return array if dtype in (None, dtype_name(array)) else _cast(array, dtype)
    plain = _read(array)
    wanted = dtype or _kept(plain.dtype)
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


def _read(array: Any) -> Any:
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise errors.WrongObjectError(
            f"amp.to_native: MXNet reads other frameworks' arrays by way of numpy, and numpy cannot read this "
            f"{type(array).__name__}: {error}; pass it as a float32 array in the memory of the host"
        ) from error


def _kept(dtype: Any) -> str | None:
    """Return what arrays of a numpy dtype come out in; None: as they are."""
    if dtype.name == "bfloat16":  # an extension of numpy (ml_dtypes)
        return "bfloat16"
    return "float32" if dtype.kind == "f" and dtype.itemsize > 2 else None


def _cast(array: Any, dtype: str | None) -> Any:
    with mx.util.np_shape(True):  # MXNet 1 casts no single number otherwise
        return call("Cast", [array], dtype=dtype)


def to_numpy(tensor: Any) -> Any:
    """Return an array as numpy; bfloat16 comes back as float32."""
    if not isinstance(tensor, NDArray):
        return np.asarray(tensor)
    if tensor.dtype == BFLOAT16:
        tensor = _cast(tensor, "float32")
    return tensor.asnumpy()


def backward(losses: list[Any], heads: list[Any] | None) -> None:
    """Differentiate the losses, beginning with the heads (None: ones).

    Raises:
        LossError: a loss does not depend on anything that was recorded.
    """
    try:
        mx.autograd.backward(losses, heads)
    except base.MXNetError as error:
        if not any(text in str(error) for text in _NO_GRAPH):
            raise
        raise errors.LossError(
            "amp.scale_loss: the loss is not connected to any parameter (any more). Compute it from the model's output "
            "inside 'with amp.autocast():'. MXNet frees a graph when its gradients have been taken, and with it what "
            "other losses share with it, inputs included: add the losses, or compute the second one afterwards"
        ) from error


_NO_GRAPH = ("Cannot differentiate node", "The any container is empty")
"""What MXNet says when a loss has no graph, and when part of its graph was freed."""
