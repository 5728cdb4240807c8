"""Arrays of numpy and of other frameworks as tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import errors, host_array

from .._types import Tensor, Variable

ALIGNMENT = 64
"""Bytes. TensorFlow aborts the process when a CPU tensor made from DLPack begins elsewhere (EIGEN_MAX_ALIGN_BYTES)."""

_CPU = 1  # DLPack's kDLCPU
_BYTE_OFFSET = 40  # of DLTensor::byte_offset; DLTensor::data comes first


def to_native(array: Any, dtype: str | None) -> Tensor:
    """Return an array as a tensor; see ``Device.to_native``."""
    if not isinstance(array, (tf.Tensor, tf.Variable)):
        # TensorFlow makes float32 of Python's numbers.
        plain = dtype == "float64" and not hasattr(array, "__dlpack__")
        array = _tensor(np.asarray(array) if plain else array)
        if dtype is None and array.dtype.is_floating and array.dtype.size > 2:
            dtype = "float32"
    return array if dtype is None or array.dtype == dtype else tf.cast(array, dtype)


def wide_dtype(variable: Variable) -> Any:
    """Return the dtype of 32 bits per number that holds a variable's values: float32, or complex64."""
    return tf.complex64 if variable.dtype.is_complex else tf.float32


def read_variable(variable: Variable | Tensor, dtype: Any) -> Any:
    """Return a copy of the values of a variable or tensor as a numpy array."""
    # A cast to the same dtype returns the variable itself, which numpy 2 cannot copy without a warning.
    return tf.convert_to_tensor(tf.cast(variable, dtype)).numpy().copy()


def _tensor(array: Any) -> Tensor:
    """Return a tensor of the array's dtype; DLPack without a copy where it is aligned, numpy with one at most."""
    if not hasattr(array, "__dlpack__") or isinstance(array, np.ndarray):
        return _converted(array)
    capsule = array.__dlpack__()
    if array.__dlpack_device__()[0] != _CPU or _address(capsule) % ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(capsule)
    try:
        return tf.convert_to_tensor(np.from_dlpack(array))
    except (BufferError, RuntimeError, TypeError) as error:
        raise errors.WrongObjectError(
            f"amp.to_native: this {type(array).__name__} does not begin at a multiple of {ALIGNMENT} bytes, as "
            f"TensorFlow needs it, and numpy cannot read it ({error}); pass a copy of it"
        ) from error


def _converted(array: Any) -> Tensor:
    if getattr(array, "dtype", None) == np.longdouble:
        array = np.asarray(array, np.float64)
    try:
        return tf.convert_to_tensor(array)
    except (TypeError, ValueError) as error:
        host_array(array)  # which says what is wrong with most
        raise errors.WrongObjectError(
            f"amp.to_native: TensorFlow makes no tensor of this {type(array).__name__} "
            f"({errors.shown(str(error), 100)}); pass an array of numbers"
        ) from None


def _address(capsule: object) -> int:
    """Return the address of a DLPack capsule's data."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = pointer(capsule, b"dltensor")
    start = ctypes.c_void_p.from_address(tensor).value or 0
    return start + ctypes.c_uint64.from_address(tensor + _BYTE_OFFSET).value
