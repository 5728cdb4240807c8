"""What rounding to a format does to values of which counts by powers of two are known.

A count belongs to an interval ``[a, b)`` whose ends are 1/8 of a power of two apart. Its values are taken as spread
evenly over the interval. Scaled by ``s``, the interval is ``[x, y)``, and between two powers of two the numbers of a
format with ``m`` bits of fraction lie ``d`` apart::

    d(v) = max(min_subnormal, 2**(floor(log2(v)) - m))

For one value the squared relative error is ``((round(v) - v) / v)**2``. Its mean over the interval is::

    (P(y) - P(x)) / (y - x) / (x * y),   P(v) = n d**3 / 12 + ((v - n d)**3 + (d / 2)**3) / 3,   n = round(v / d)

where ``P`` is the integral of the squared distance to the nearest multiple of ``d``, and ``1 / (x * y)`` the mean of
``1 / v**2``. A power of two inside the interval parts it, as does the largest number. Up to ``min_subnormal / 2`` a
value becomes zero, with an error of 1. Beyond the largest number it becomes that number (a saturating conversion) or is
lost, with an error of 1. The interval of the largest value ends there.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backend.forecast import NON_FINITE, PLACES, SHIFT
from ..formats import FloatFormat

Floats = npt.NDArray[np.float64]

_STARTS: Floats = (np.arange(NON_FINITE + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
_NARROWEST = 1e-6
"""Relative width of the interval that holds the largest value alone."""


@dataclass(frozen=True)
class Rounding:
    """Sums over values; each attribute has the shape of the scales, or of the tensors where these are more.

    Attributes:
        values: finite values that are not zero; of the shape of the tensors.
        flushed: that become zero.
        subnormal: that become no zero, and are below the smallest normal number.
        overflow: beyond the largest number.
        error: the sum of squared relative errors.
    """

    values: Any
    flushed: Any
    subnormal: Any
    overflow: Any
    error: Any


def rounding(counts: Any, largest: Any, format: FloatFormat, scale: Any = 1.0, saturate: bool = False) -> Rounding:
    """Return what rounding values times ``scale`` to ``format`` does to them.

    Args:
        counts: shape (…, ``PLACES``), for one tensor or several; zeros, inf and nan are left out.
        largest: shape (…): the largest finite absolute value of each.
        format: one of ``FLOAT_FORMATS``.
        scale: positive; its shape is broadcast with that of the tensors.
        saturate: values beyond the largest number become that number.
    """
    counts, largest, scale = np.asarray(counts), np.asarray(largest, np.float64), np.asarray(scale, np.float64)
    tensors = counts.shape[:-1]
    rows, places, held = _not_zero(counts.reshape(-1, counts.shape[-1]))
    shape = np.broadcast_shapes(scale.shape, tensors)
    scales = np.broadcast_to(scale, shape).reshape(-1, math.prod(tensors))[:, rows]
    low, high = _STARTS[places], np.minimum(_STARTS[places + 1], largest.reshape(-1)[rows])
    sums = _sums(held, low * scales, np.maximum(high, low * (1 + _NARROWEST)) * scales, format, saturate)
    values = _by_row(held[None], rows, math.prod(tensors)).reshape(tensors)
    return Rounding(values, *(_by_row(each, rows, math.prod(tensors)).reshape(shape) for each in sums))


def rounding_at(
    counts: Any, largest: Any, format: FloatFormat, scales: tuple[float, ...], saturate: bool = False
) -> Rounding:
    """Return the same for all of some scales, from a table of what rounding does to each interval: for many tensors.

    Args:
        counts: shape (tensors, ``PLACES``).
        largest: shape (tensors,).
        format, saturate: as above.
        scales: positive. The attributes have shape (scales, tensors), but ``values``.
    """
    counts, largest = np.asarray(counts, np.float64), np.asarray(largest, np.float64)
    table, factors = _table(format, scales, saturate), np.array(scales)[:, None]
    sums = table @ counts.T
    places = largest.astype(np.float32).view(np.uint32) >> SHIFT  # the interval that ends at the largest value
    low, held = _STARTS[places], counts[np.arange(len(counts)), places] * (places > 0)
    high = np.maximum(largest, low * (1 + _NARROWEST))
    last = np.stack(_sums(held, low * factors, np.where(places > 0, high, 1.0) * factors, format, saturate))
    sums += last - held * table[..., places]
    return Rounding(counts[:, 1:NON_FINITE].sum(-1), *sums)


@functools.lru_cache(maxsize=16)
def _table(format: FloatFormat, scales: tuple[float, ...], saturate: bool) -> Floats:
    """Return the sums of ``Rounding`` but ``values``, at each scale, for one value in each place."""
    found = np.zeros((4, len(scales), PLACES))
    low, high = _STARTS[1:NON_FINITE], np.minimum(_STARTS[2:], 2.0**128)
    factors = np.array(scales)[:, None]
    found[..., 1:NON_FINITE] = _sums(np.ones(len(low)), low * factors, high * factors, format, saturate)
    return found


def _not_zero(counts: Any) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats]:
    """Return row, place and number of each count of finite values that is not zero."""
    flat = counts.ravel()
    found = np.flatnonzero(flat != 0)  # several times faster than nonzero of a matrix
    rows, places = np.divmod(found, counts.shape[-1])
    finite = (places > 0) & (places < NON_FINITE)
    return rows[finite], places[finite], flat[found[finite]].astype(np.float64)


def _sums(held: Floats, x: Floats, y: Floats, format: FloatFormat, saturate: bool) -> tuple[Floats, ...]:
    """Return what ``Rounding`` adds up, of each count of values from x to y."""
    zero, edge = format.min_subnormal / 2, _overflow_edge(format)
    below_zero, below_normal, below_edge = (_share_below(x, y, at) for at in (zero, format.min_normal, edge))
    flushed, over = held * below_zero, held * (1 - below_edge)
    subnormal = held * np.maximum(below_normal - below_zero, 0)
    power = np.ldexp(1.0, np.frexp(y)[1] - 1)  # the largest one up to y
    start = np.maximum(x, zero)
    errors = _integral(np.maximum(start, power), y, edge, format)
    parted = power > start
    errors[parted] += _integral(start[parted], np.minimum(y, power)[parted], edge, format)
    error = flushed + held * errors / (y - x)
    if saturate:
        beyond = y > edge
        error[beyond] += np.broadcast_to(held, y.shape)[beyond] * _saturated(x[beyond], y[beyond], edge, format.max)
    else:
        error += over
    return flushed, subnormal, over, error


def _by_row(summands: Floats, rows: npt.NDArray[np.intp], count: int) -> Floats:
    """Return the sums over the last dimension by ``rows``, which ascend; 0 for a row without any."""
    starts = np.searchsorted(rows, np.arange(count + 1))
    padded = np.concatenate([summands, np.zeros((len(summands), 1))], -1)  # a last row without any begins there
    found: Floats = np.where(starts[1:] > starts[:-1], np.add.reduceat(padded, starts[:-1], -1), 0.0)
    return found


def _overflow_edge(format: FloatFormat) -> float:
    """Return from where on values are rounded to more than the largest number."""
    return float(format.max + 2.0 ** (format.max_exponent - format.mantissa_bits - 1))


def _share_below(x: Floats, y: Floats, at: float) -> Floats:
    found: Floats = np.minimum(np.maximum((at - x) / (y - x), 0), 1)
    return found


def _integral(x: Floats, y: Floats, edge: float, format: FloatFormat) -> Floats:
    """Return the integral of squared relative errors from x to y, which no power of two parts; 0 where x >= y."""
    y = np.minimum(y, edge)
    there = y > x
    x, y = np.where(there, x, 1.0), np.where(there, y, 1.0)
    step = np.maximum(format.min_subnormal, np.ldexp(1.0, np.frexp(x)[1] - 1 - format.mantissa_bits))
    step = np.where(x >= format.max, 2.0 ** (format.max_exponent - format.mantissa_bits), step)
    found: Floats = (_antiderivative(y, step) - _antiderivative(x, step)) / (x * y)
    return found


def _antiderivative(v: Floats, step: Floats) -> Floats:
    number = np.rint(v / step)
    rest, cube = v - number * step, step * step * step  # products: numpy's power takes many times as long
    found: Floats = number * cube / 12 + (rest * rest * rest + cube / 8) / 3
    return found


def _saturated(x: Floats, y: Floats, edge: float, largest: float) -> Floats:
    """Return the mean squared relative error of the part of the intervals that is cut off at the largest number.

    All end beyond ``edge``.
    """
    x, width = np.maximum(x, edge), y - x
    found: Floats = ((y - largest) ** 3 - (x - largest) ** 3) / 3 / (x * y) / width
    return found
