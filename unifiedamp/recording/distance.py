"""How far two sketched tensors are apart, and from which distance on they count as different."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8": 2.0**-3}
"""dtype → the distance from 1 to the next number, one unit in the last place (ULP)."""
ULP = 4.0
"""Distance, in ULP of a lower-precision dtype, from which two tensors count as different."""
ULP32 = 64.0
"""The same of float32, whose sums compiled kernels, other devices and other batch sizes add in another order."""


@dataclass(frozen=True)
class Distance:
    """Of two tensors.

    Attributes:
        relative: Euclidean distance divided by the larger norm, estimated from the sketches; inf where one alone is
            not finite.
        cosine: of the angle between them, estimated; None where that is not known.
        lengths: the difference of their norms, which are exact, divided by the larger one.
    """

    relative: float
    cosine: float | None
    lengths: float


ALIKE = Distance(0.0, None, 0.0)
APART = Distance(math.inf, None, math.inf)


def limit_of(dtype: str, ulp: float | None) -> float:
    """Return the relative distance from which tensors of a dtype differ."""
    known = dtype if dtype in EPS else "float32"
    usual = ULP32 if known in ("float32", "float64") else ULP
    return (usual if ulp is None else ulp) * EPS[known]


def lowest(dtypes: Iterable[str]) -> str:
    """Return the dtype of the lowest precision."""
    return max(dtypes, key=lambda dtype: EPS.get(dtype, 0.0))


def numbers(sketched: Mapping[str, Any], part: str) -> tuple[float, list[float]]:
    """Return the norm of a sketched tensor, and the numbers of one part of its sketch."""
    return float(sketched["norm"]), [float(value) for value in sketched[part]]


def measure(one: Mapping[str, Any], other: Mapping[str, Any], part: str = "sketch", floor: float = 0.0) -> Distance:
    """Return the distance of two tensors.

    Args:
        one, other: their sketches.
        part: "sketch" compares element by element; "ordered" the values in ascending order, whatever the layout;
            "batch" norms and sums over the first dimension, and "norm" norms alone, which give lower bounds of it.
        floor: distances are relative to this norm at least.
    """
    if part == "norm":
        lengths = relative(float(one["norm"]), float(other["norm"]))
        return Distance(lengths, None, lengths)
    (norm, values), (other_norm, others) = numbers(one, part), numbers(other, part)
    if (norm, values) == (other_norm, others):
        return Distance(0.0, 1.0 if norm else None, 0.0)
    if not all(map(math.isfinite, (norm, other_norm, *values, *others))):
        return ALIKE if not math.isfinite(norm) and not math.isfinite(other_norm) else APART
    larger = max(norm, other_norm, floor)
    lengths = abs(norm - other_norm) / larger
    if not norm or not other_norm:
        return Distance(lengths, None, lengths)
    if part == "batch":
        rows = max(1, *(each["shape"][0] if each["shape"] else 1 for each in (one, other)))
        return Distance(max(lengths, math.dist(values, others) / math.sqrt(rows) / larger), None, lengths)
    length, other_length = math.hypot(*values) or norm, math.hypot(*others) or other_norm
    # The angle is that of the sketches; the norms are known. Written so that small distances keep their digits.
    chord = math.dist([value / length for value in values], [value / other_length for value in others])
    distance = math.hypot(norm - other_norm, chord * math.sqrt(norm * other_norm))
    return Distance(distance / larger, max(-1.0, 1.0 - chord**2 / 2), lengths)


def relative(a: float, b: float) -> float:
    """Return the distance of two numbers divided by the larger one."""
    if a == b or (not math.isfinite(a) and not math.isfinite(b)):
        return 0.0
    if not math.isfinite(a) or not math.isfinite(b):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def sum_of(sketches: Sequence[Mapping[str, Any]], divisor: int = 1) -> dict[str, Any]:
    """Return the sketch of the sum of tensors, divided by a number; its norm is estimated from the sketch, which is
    linear.
    """
    rows = [numbers(each, "sketch")[1] for each in sketches]
    values = [sum(column) / divisor for column in zip(*rows, strict=True)]
    return {**sketches[0], "sketch": values, "norm": math.hypot(*values)}


def estimated(sketched: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sketch whose norm is estimated, to be compared with :func:`sum_of`."""
    return {**sketched, "norm": math.hypot(*numbers(sketched, "sketch")[1])}


def whole_batch(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is known of a tensor whose first dimension is divided over ranks: norm, and sum over the batch."""
    norms, sums = zip(*(numbers(each, "batch") for each in parts), strict=True)
    shape = parts[0]["shape"]
    rows = sum(each["shape"][0] for each in parts) if shape else 0
    total = [sum(column) for column in zip(*sums, strict=True)]
    return {**parts[0], "shape": [rows, *shape[1:]] if shape else [], "norm": math.hypot(*norms), "batch": total}
