"""Operators over many arrays at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ..device.versions import call, cast, context_of, dtype_code

CHUNK = 200
"""Arrays per call of the finite check, as in MXNet's own scaler."""


def zero(arrays: list[Any]) -> None:
    """Fill arrays with zeros, the dense ones of each context in one call."""
    for group in by_context(array for array in arrays if array.stype == "default"):
        call("reset_arrays", group, num_arrays=len(group))
    for array in arrays:
        if array.stype != "default":
            call("zeros_like", [array], out=array)


def all_finite(arrays: Iterable[Any]) -> bool:
    """Tell whether all arrays on every context are finite. Waits for the devices."""
    flags = []
    for group in by_context(map(dense, arrays)):
        for start in range(0, len(group), CHUNK):
            chunk = group[start : start + CHUNK]
            flags.append(call("multi_all_finite", chunk, num_arrays=len(chunk), init_output=True))
    return all(bool(flag.asnumpy()[0]) for flag in flags)


def global_norm(arrays: Iterable[Any]) -> Any:
    """Return the 2-norm over all arrays of one context, a native scalar; where the squares overflow, it waits."""
    grads = [dense(array) for array in arrays]
    norm = _norm(grads)
    if math.isinf(float(norm.asnumpy().reshape(()))):
        largest = max(float(abs(grad).max().asnumpy().reshape(())) for grad in grads)
        norm = _norm([grad / largest for grad in grads]) * largest
    return norm


def _norm(grads: list[Any]) -> Any:
    sums = [call("multi_sum_sq", group, num_arrays=len(group)).sum() for group in by_context(grads)]
    squares = [cast(one.reshape((1,)), "float32") for one in sums] if len(sums) > 1 else sums
    return sum(squares[1:], squares[0]) ** 0.5


def dense(array: Any) -> Any:
    """Return the array that holds an array's numbers (of a sparse one, its rows)."""
    return array if array.stype == "default" else array.data


def by_context(arrays: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the arrays of each context and dtype: an operator over many takes one of each."""
    groups: dict[Any, list[Any]] = {}
    for array in arrays:
        groups.setdefault((context_of(array), dtype_code(array)), []).append(array)
    yield from groups.values()
