"""The toy's device: numpy on the CPU."""

from __future__ import annotations

import numpy as np

from unifiedamp.backend import Device, errors, host_array

from . import autograd as toy


class ToyDevice(Device):
    """Arrays in and out."""

    name = "cpu"

    def to_native(self, array, dtype=None):
        if dtype == "float64":
            raise errors.UnsupportedError("toy tensors have 32 bits at most")
        if isinstance(array, toy.Tensor):
            return array if dtype in (None, array.dtype) else toy.Tensor(array.data, dtype)
        plain = np.from_dlpack(array) if _dlpack_alone(array) else host_array(array)
        if dtype is not None:
            return toy.Tensor(plain.astype(np.float32), dtype)
        if plain.dtype.name == "bfloat16":  # an extension of numpy
            return toy.Tensor(plain.astype(np.float32), "bfloat16")
        return toy.Tensor(plain, "float16" if plain.dtype == np.float16 else "float32")

    def to_numpy(self, tensor):
        return np.asarray(tensor.data if isinstance(tensor, toy.Tensor) else tensor)


def _dlpack_alone(array):
    return hasattr(array, "__dlpack__") and not hasattr(array, "__array__")
