"""What each format would do to each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..backend.forecast import ALL_TENSORS, GRADIENTS, NON_FINITE, OPERANDS
from ..formats import FLOAT_FORMATS
from .losses import rounding
from .scaled_formats import SCALED_FORMATS, ScaledFormat
from .totals import LayerTotals, TensorTotals, rounding_of

SCALES = tuple(2.0**power for power in range(25))
"""Loss scales that are looked at: those from 1 to the largest that ``DynamicLossScale`` grows to."""
COLUMNS = ("float16", "bfloat16", "float8", "float8 delayed")
"""Formats of the table: float8 with tensorwise scales, and with delayed ones."""
IN_16_BITS = ("float16", "bfloat16")
"""Formats in which values beyond the range are lost; in others they saturate."""


@dataclass(frozen=True)
class TensorLoss:
    """What a format does to one tensor of a layer, as shares of its finite values that are not zero.

    Attributes:
        tensor: "weight", "input", "gradient" (of the output), "output", "weight_gradient", or of attention "query",
            "key", "value" and their gradients ("query_gradient", …).
        flushed: become zero.
        subnormal: are held with fewer bits.
        overflow: lie beyond the format's largest number: lost in a 16-bit format, saturated in float8.
        error: the mean squared relative error.
    """

    tensor: str
    flushed: float = 0.0
    subnormal: float = 0.0
    overflow: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class LayerForecast:
    """What each format would do to one layer.

    Attributes:
        layer, kind, work, float8, holds_layers: as in ``LayerTotals``.
        losses: format of :data:`COLUMNS`, or of ``SCALED_FORMATS`` where asked for → of each tensor; float16 gradients
            at the loss scale that is chosen.
        scale_needed: the smallest loss scale, a power of two, at which float16 gradients stay within the error; 1.0
            without gradients, None where no scale of :data:`SCALES` does.
        scale_limit: the largest at which no gradient overflows float16; 0.0 where each does.
        exponents: tensor → power of two → share of the values.
        non_finite: tensor → steps in which it held inf or nan.
    """

    layer: str
    kind: str
    work: int
    float8: str
    losses: Mapping[str, list[TensorLoss]]
    scale_needed: float | None
    scale_limit: float
    exponents: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    non_finite: Mapping[str, int] = field(default_factory=dict)
    holds_layers: bool = False

    def worst(self, format: str) -> TensorLoss:
        """Return the tensor that a format hurts most: one that overflows in 16 bits, else the largest error."""
        lost = [each for each in self.losses[format] if each.overflow and format in IN_16_BITS]
        return max(lost or self.losses[format], key=lambda each: (each.error, each.overflow), default=TensorLoss(""))

    def why_hurt(self, format: str, max_error: float) -> str:
        """Return what a format does to the layer beyond ``max_error``, in a few words; empty where it does nothing."""
        worst = self.worst(format)
        name = worst.tensor.replace("_", " ")
        if worst.overflow and format in IN_16_BITS:
            return f"{name}: {_percent(worst.overflow)} overflow"
        if worst.error <= max_error:
            return ""
        share, what = max((worst.flushed, "flushed to zero"), (worst.overflow, "saturated"))
        return f"{name}: {_percent(share)} {what}" if share > max_error / 2 else f"{name}: error {worst.error:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class ScaledGradients:
    """A layer's gradients in float16 at each of :data:`SCALES`.

    Attributes:
        errors: the largest mean squared relative error of a gradient, at each scale.
        limit: see ``LayerForecast.scale_limit``.
    """

    errors: Sequence[float]
    limit: float

    def hurt(self, place: int, max_error: float) -> bool:
        """Return whether the layer cannot do with the scale ``SCALES[place]``."""
        return SCALES[place] > self.limit or self.errors[place] > max_error

    def needed(self, max_error: float) -> float | None:
        """Return the smallest scale at which the error is small enough; None where there is none."""
        return next((scale for scale, error in zip(SCALES, self.errors, strict=True) if error <= max_error), None)


def scaled_gradients(totals: Sequence[LayerTotals]) -> list[ScaledGradients]:
    """Return those of each layer."""
    format = FLOAT_FORMATS["float16"]
    found = [[each.tensors[name] for name in GRADIENTS if name in each.tensors] for each in totals]
    together = [tensor for each in found for tensor in each]
    errors = np.zeros((len(SCALES), 0))
    if together:
        rounded = rounding_of(together, format, SCALES)
        errors = rounded.error / np.maximum(rounded.values, 1.0)
    rows = iter(errors.T)
    scaled = []
    for tensors in found:
        worst = np.max([next(rows) for _ in tensors], axis=0, initial=0.0) if tensors else np.zeros(len(SCALES))
        largest = max((each.largest for each in tensors), default=0.0)
        limit = max((scale for scale in SCALES if largest * scale <= format.max), default=0.0)
        scaled.append(ScaledGradients(worst.tolist(), limit))
    return scaled


def layer_forecasts(
    totals: Sequence[LayerTotals],
    gradients: Sequence[ScaledGradients],
    loss_scale: float,
    max_error: float,
    formats: Sequence[str] = (),
) -> list[LayerForecast]:
    """Return what each format would do to each layer.

    Args:
        totals: of each layer.
        gradients: of each layer.
        loss_scale: of float16 gradients.
        max_error: the mean squared relative error that is accepted.
        formats: those of ``SCALED_FORMATS`` are looked at too.
    """
    float16 = _losses(totals, "float16", loss_scale)
    bfloat16 = _losses(totals, "bfloat16", 1.0)
    found = []
    for layer, its, in_float16, in_bfloat16 in zip(totals, gradients, float16, bfloat16, strict=True):
        operands = [(name, layer.tensors[name]) for name in OPERANDS if name in layer.tensors]
        losses = {"float16": in_float16, "bfloat16": in_bfloat16}
        for column, recipe in (("float8", "tensorwise"), ("float8 delayed", "delayed")):
            losses[column] = [_float8(name, tensor.float8.get(recipe)) for name, tensor in operands]
        for format in formats:
            if format in SCALED_FORMATS:
                losses[format] = [_scaled(name, tensor, SCALED_FORMATS[format]) for name, tensor in operands]
        found.append(LayerForecast(
            layer.layer, layer.kind, layer.work, layer.float8, losses, its.needed(max_error), its.limit,
            {name: exponents(layer.tensors[name]) for name in _names(layer)},
            {name: each.non_finite for name, each in layer.tensors.items() if each.non_finite}, layer.holds_layers,
        ))  # fmt: skip
    return found


def _names(layer: LayerTotals) -> list[str]:
    return [name for name in ALL_TENSORS if name in layer.tensors]


def _losses(totals: Sequence[LayerTotals], format: str, loss_scale: float) -> list[list[TensorLoss]]:
    """Return what a format does to each tensor of each layer, to gradients with a loss scale."""
    together = [layer.tensors[name] for layer in totals for name in _names(layer)]
    if not together:
        return [[] for _ in totals]
    found = rounding_of(together, FLOAT_FORMATS[format], (1.0, loss_scale))
    sums = np.stack([found.flushed, found.subnormal, found.overflow, found.error], -1).tolist()
    rows = zip(found.values.tolist(), *sums, strict=True)
    losses = []
    for layer in totals:
        named = [(name, next(rows)) for name in _names(layer)]
        losses.append([_shares(name, values, *(scaled if name in GRADIENTS else plain))
                       for name, (values, plain, scaled) in named])  # fmt: skip
    return losses


def _float8(name: str, sums: list[float] | None) -> TensorLoss:
    return _shares(name, *sums) if sums else TensorLoss(name)


def _scaled(name: str, totals: TensorTotals, format: ScaledFormat) -> TensorLoss:
    counted = totals.scaled.get(format.scaling)
    if counted is None:
        return TensorLoss(name)
    found = rounding(counted.counts, counted.largest, format.element, format.factor, saturate=True)
    return _shares(name, float(found.values), found.flushed, found.subnormal, found.overflow, found.error)


def _shares(name: str, values: float, *sums: Any) -> TensorLoss:
    return TensorLoss(name, *(float(each) / values for each in sums)) if values else TensorLoss(name)


def exponents(totals: TensorTotals) -> dict[int, float]:
    """Return power of two → share of the values that are not zero."""
    by_power = totals.counts[:NON_FINITE].reshape(-1, 8).sum(-1)  # eight places to a power of two
    by_power[0] -= totals.counts[0]
    there, powers = int(by_power.sum()), np.flatnonzero(by_power)
    return dict(zip((powers - 127).tolist(), (by_power[powers] / max(1, there)).tolist(), strict=True))


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
