"""The numbers of a recorded step: counts by powers of two, and largest values.

By numpy where the arrays lie on the host, which is ten times faster than MXNet's operators on a CPU; by operators on a
device. No operator shows a number's bits, so the device works them out by a logarithm.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import recording

from .._types import Array, HostArray
from ..device.selection import is_cpu
from ..mxnet_api import CODES, base, call, cast, context_of, dtype_code
from ..training.multi_tensor import by_context

BUCKETS = recording.BUCKETS

Counted = Any
"""A vector of numbers: a numpy array, or one of MXNet's on a device."""

HOST_CHUNK = 2**20
"""Values that are counted at once on the host, at most; a larger gradient is counted by itself."""


def count(gradients: Sequence[Array], scale: float) -> list[Counted]:
    """Return two vectors of counts per gradient, of its values and of its values divided by ``scale``.

    Args:
        gradients: arrays of one context.
        scale: the loss scale.
    """
    if _on_host(gradients[0]):
        return count_on_host(gradients, scale)
    return count_on_device(gradients, scale)


def largest(array: Array, buffer: HostBuffer) -> Counted:
    """Return the largest absolute value as a vector of one number: inf or nan where the array holds one."""
    if _on_host(array):
        there = buffer.read(array)
        return np.maximum(there.max(keepdims=True), -there.min(keepdims=True))
    values = cast(array.reshape((-1,)), "float32")
    return call("max", [call("abs", [values])], axis=0, keepdims=True)


def read(arrays: Sequence[Counted]) -> list[HostArray]:
    """Return vectors of one length as numpy arrays; those that lie on a device are read in one go."""
    values = {id(array): array for array in arrays if isinstance(array, np.ndarray)}
    for group in by_context({id(array): array for array in arrays if id(array) not in values}.values()):
        rows = _join(group).asnumpy().reshape(len(group), -1)
        values.update(zip(map(id, group), rows, strict=True))
    return [values[id(array)] for array in arrays]


class HostBuffer:
    """Memory that arrays on the host are copied to for numpy, one after the other; reused, as new memory costs more.

    Not a view by DLPack, which refuses what oneDNN left in its blocked layout. A copy of float32 is made by the thread
    that asks, beside MXNet's own, which may be at the backward pass.
    """

    def __init__(self) -> None:
        self._values = np.empty(0, np.float32)

    def read(self, array: Array) -> HostArray:
        """Return an array as a flat one of float32, valid until the next is read."""
        if dtype_code(array) != CODES["float32"]:
            array = cast(array, "float32")
        if array.size > self._values.size:
            self._values = np.empty(array.size, np.float32)
        values = self._values[: array.size]
        place = values.ctypes.data_as(ctypes.c_void_p)
        # Operators that read an array change its oneDNN descriptor, which the copy reads without waiting for them.
        base.check_call(base._LIB.MXNDArrayWaitToWrite(array.handle))
        base.check_call(base._LIB.MXNDArraySyncCopyToCPU(array.handle, place, ctypes.c_size_t(values.size)))
        return values


def _on_host(array: Array) -> bool:
    return is_cpu(context_of(array))


def count_on_host(gradients: Sequence[Array], scale: float) -> list[HostArray]:
    """Return numpy arrays; see :func:`count`."""
    counts = []
    for group in _groups(HostBuffer().read(gradient) for gradient in gradients):
        joined = np.concatenate(group)
        ends = np.cumsum([values.size for values in group[:-1]], dtype=np.int64)
        scaled = _numpy_counts(joined, ends)
        true = scaled if scale == 1.0 else _numpy_counts(joined / np.float32(scale), ends)
        counts += [part for both in zip(scaled, true, strict=True) for part in both]
    return counts


def _groups(arrays: Iterable[HostArray]) -> Iterator[list[HostArray]]:
    """Yield neighbours, up to ``HOST_CHUNK`` values at a time: most are small, and each numpy call costs some."""
    group: list[HostArray] = []
    held = 0
    for values in arrays:
        if group and held + values.size > HOST_CHUNK:
            yield group
            group, held = [], 0
        group.append(values)
        held += values.size
    yield group


def _numpy_counts(values: HostArray, ends: HostArray) -> list[HostArray]:
    """Return the counts of each piece of ``values``; all but the last end at ``ends``."""
    bits = values.view(np.int32) & 0x7FFFFFFF
    above = (bits > recording.MAX_BITS).astype(np.int32) + (bits > recording.INF_BITS)
    places = (bits >> 23) + 1 + above - (bits == 0)
    return [np.bincount(piece, minlength=BUCKETS) for piece in np.split(places, ends)]


def count_on_device(gradients: Sequence[Array], scale: float) -> list[Array]:
    """Return MXNet arrays; see :func:`count`."""
    flat = [cast(gradient.reshape((-1,)), "float32") for gradient in gradients]
    joined = _join(flat)
    scaled = _places(joined)
    true = scaled if scale == 1.0 else _places(joined / scale)
    counts, start = [], 0
    for values in flat:
        end = start + values.shape[0]
        counts += [_histogram(places, start, end) for places in (scaled, true)]
        start = end
    return counts


def _join(arrays: Sequence[Array]) -> Array:
    return call("Concat", list(arrays), dim=0, num_args=len(arrays)) if len(arrays) > 1 else arrays[0]


def _histogram(places: Array, start: int, end: int) -> Array:
    part = call("slice", [places], begin=(start,), end=(end,))
    histogram: Array = call("_histogram", [part], bin_cnt=BUCKETS, range=(0.0, float(BUCKETS)))[0]
    return histogram


def _places(values: Array) -> Array:
    """Return the number of each value's bucket between ``recording.EDGE_BITS``."""
    size = call("abs", [values])
    guess = call("clip", [call("floor", [call("log2", [size])])], a_min=-126.0, a_max=127.0)
    power = call("_rpower_scalar", [guess], scalar=2.0)
    # log2 rounds up just below a power of two; below 2**-126 the guess is one too high on purpose.
    exponent = guess - call("_lesser", [size, power]) + call("_greater_equal", [size, power * 2.0])
    places = exponent + 128.0 + call("_greater_scalar", [size], scalar=recording.FLOAT16_MAX)
    places = places * call("_not_equal_scalar", [size], scalar=0.0)
    nan = call("ones_like", [size]) * float(BUCKETS - 1)
    result: Array = call("where", [call("_equal", [size, size]), places, nan])
    return result
