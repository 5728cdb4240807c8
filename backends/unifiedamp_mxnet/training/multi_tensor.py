"""Operators over many arrays at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._types import Array
from ..mxnet_api import CODES, call, context_of, dtype_code

CHUNK = 200
"""Arrays per call of the finite check, as in MXNet's own scaler."""


def zero(arrays: list[Array]) -> None:
    """Fill arrays with zeros, the dense ones of each context in one call."""
    apart = [array for array in arrays if array.stype != "default" or dtype_code(array) == CODES["bfloat16"]]
    known = set(map(id, apart))
    for group in by_context(array for array in arrays if id(array) not in known):
        call("reset_arrays", group, num_arrays=len(group))
    for array in apart:
        call("zeros_like", [array], out=array)


def all_finite(arrays: Iterable[Array]) -> bool:
    """Return whether all arrays on every context are finite. Waits for the devices."""
    flags = []
    for group in by_context(map(dense, arrays)):
        for start in range(0, len(group), CHUNK):
            chunk = group[start : start + CHUNK]
            flags.append(call("multi_all_finite", chunk, num_arrays=len(chunk), init_output=True))
    return all(bool(flag.asnumpy()[0]) for flag in flags)


def dense(array: Array) -> Array:
    """Return the array that holds an array's numbers (of a sparse one, its rows)."""
    return array if array.stype == "default" else array.data


def by_context(arrays: Iterable[Array]) -> Iterator[list[Array]]:
    """Yield the arrays of each context and dtype: an operator over many takes one of each."""
    groups: dict[object, list[Array]] = {}
    for array in arrays:
        groups.setdefault((context_of(array), dtype_code(array)), []).append(array)
    yield from groups.values()
