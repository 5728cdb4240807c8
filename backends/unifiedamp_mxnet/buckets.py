"""Counting values by powers of two, with MXNet's operators: there is none that shows a number's bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unifiedamp.backend import recording

from .native import call, cast

BUCKETS = recording.BUCKETS


def count(gradients: Sequence[Any], scale: float) -> list[Any]:
    """Return two count arrays per gradient, of its values and of its values divided by ``scale``; all on one context.

    Args:
        gradients: arrays of one context.
        scale: the loss scale; 1 counts once.
    """
    flat = [cast(gradient, "float32").reshape((-1,)) for gradient in gradients]
    joined = _join(flat)
    scaled = _places(joined)
    true = scaled if scale == 1.0 else _places(joined / scale)
    counts, start = [], 0
    for values in flat:
        end = start + values.shape[0]
        counts += [_histogram(places, start, end) for places in (scaled, true)]
        start = end
    return counts


def _join(arrays: Sequence[Any]) -> Any:
    return call("Concat", list(arrays), dim=0, num_args=len(arrays)) if len(arrays) > 1 else arrays[0]


def _histogram(places: Any, start: int, end: int) -> Any:
    part = call("slice", [places], begin=(start,), end=(end,))
    return call("_histogram", [part], bin_cnt=BUCKETS, range=(0.0, float(BUCKETS)))[0]


def _places(values: Any) -> Any:
    """Return the number of each value's bucket, as ``recording.EDGE_BITS`` part them."""
    size = call("abs", [values])
    guess = call("clip", [call("floor", [call("log2", [size])])], a_min=-126.0, a_max=127.0)
    power = call("_rpower_scalar", [guess], scalar=2.0)
    # log2 rounds up just below a power of two; below 2**-126 the guess is one too high on purpose.
    exponent = guess - call("_lesser", [size, power]) + call("_greater_equal", [size, power * 2.0])
    places = exponent + 128.0 + call("_greater_scalar", [size], scalar=recording.FLOAT16_MAX)
    places = places * call("_not_equal_scalar", [size], scalar=0.0)
    nan = call("ones_like", [size]) * float(BUCKETS - 1)
    return call("where", [call("_equal", [size, size]), places, nan])
