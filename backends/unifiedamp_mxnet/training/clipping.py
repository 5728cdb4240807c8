"""Gradient clipping, by global norm and by value, of the unscaled gradients on each context."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .._types import Array
from ..mxnet_api import call, cast
from .gradients import Gradients
from .multi_tensor import by_context, dense


def clip_grad_norm(contexts: Gradients, max_norm: float) -> Array | None:
    """Clip the global norm on each context (they agree once gradients are summed).

    Returns:
        The first context's norm before clipping; None without gradients.
    """
    norms = [(entries, global_norm(entry.grad for entry in entries)) for entries in contexts if entries]
    for entries, norm in norms:
        value = _number(norm)
        if value > max_norm:
            for _, grad, _ in entries:
                grad *= max_norm / value
    return norms[0][1] if norms else None


def clip_grad_value(contexts: Gradients, clip_value: float) -> None:
    """Clamp every gradient to [-clip_value, clip_value]."""
    for entries in contexts:
        for _, grad, _ in entries:
            grad[:] = grad.clip(-clip_value, clip_value)


def global_norm(arrays: Iterable[Array]) -> Array:
    """Return the 2-norm over all arrays of one context, a native scalar, also where the squares overflow."""
    grads = [dense(array) for array in arrays]
    norm = _norm(grads)
    if math.isinf(_number(norm)):
        largest = max(_number(abs(grad).max()) for grad in grads)
        norm = _norm([grad / largest for grad in grads]) * largest
    return norm


def _norm(grads: list[Array]) -> Array:
    sums: list[Array] = [call("multi_sum_sq", group, num_arrays=len(group)).sum() for group in by_context(grads)]
    squares = [cast(one.reshape((1,)), "float32") for one in sums] if len(sums) > 1 else sums
    return sum(squares[1:], squares[0]) ** 0.5


def _number(scalar: Array) -> float:
    return float(scalar.asnumpy().reshape(()))
