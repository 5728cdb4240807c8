"""The forecast as one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Protocol

from ..formats import FLOAT_FORMATS
from ..output.charts.axes import linear
from ..output.charts.curves import Area, Curve, curves
from ..output.charts.drawing import Drawing
from ..output.charts.styles import styles
from ..output.pages import drawn_or_why, render
from ..policy import Policy
from .choice import PolicyForecast
from .layers import LayerForecast

TENSOR_HEADS = ("layer", "tensor", "format", "flushed", "subnormal", "overflow", "error")
SHOWN = 12
"""Layers whose exponents are drawn: hurt ones first."""


class Shown(Protocol):
    """A ``Forecast``."""

    @property
    def max_error(self) -> float:
        """See ``Forecast``; so are the others."""

    @property
    def layers(self) -> Sequence[LayerForecast]:
        """The layers."""

    @property
    def policies(self) -> Mapping[str, PolicyForecast]:
        """The policies."""

    @property
    def notes(self) -> Sequence[str]:
        """The notes."""

    @property
    def policy(self) -> Policy:
        """The cheapest policy."""

    def title(self) -> str:
        """Return the title."""

    def heads(self) -> list[str]:
        """Return the heads of the table's columns."""

    def rows(self) -> list[list[str]]:
        """Return the cells of the table."""


def page(forecast: Shown) -> str:
    """Return the forecast as HTML; its plots are inside it."""
    drawings, why = drawn_or_why(lambda: [exponents(each) for each in _shown(forecast)])
    return render(
        "forecast",
        title=forecast.title(),
        max_error=f"{forecast.max_error:g}",
        policies=[(name, one.reason or str(one.policy), one.hurt.items()) for name, one in forecast.policies.items()],
        chosen=str(forecast.policy),
        notes=forecast.notes,
        columns=[{"name": name, "kind": "text"} for name in forecast.heads()],
        rows=[_row(forecast, layer, cells) for layer, cells in zip(forecast.layers, forecast.rows(), strict=True)],
        drawings=drawings,
        not_drawn=why,
        tensor_columns=[{"name": name, "kind": "number" if n > 2 else "text"} for n, name in enumerate(TENSOR_HEADS)],
        tensors=_tensors(forecast),
        version=version("unifiedamp"),
    )


def _row(forecast: Shown, layer: LayerForecast, cells: list[str]) -> dict[str, Any]:
    hurt = [name in layer.losses and bool(layer.why_hurt(name, forecast.max_error)) for name in forecast.heads()]
    return {
        "state": "",
        "cells": [{"text": cell, "tone": "bad" if bad else ""} for cell, bad in zip(cells, hurt, strict=True)],
    }


def _tensors(forecast: Shown) -> list[dict[str, Any]]:
    rows = []
    for layer in forecast.layers:
        for format, losses in layer.losses.items():
            for one in losses:
                shares = [f"{share:.2%}" for share in (one.flushed, one.subnormal, one.overflow)]
                cells = [layer.layer, one.tensor.replace("_", " "), format, *shares, f"{one.error:.1e}"]
                tones = ["", "", "", "bad" if one.flushed > forecast.max_error else "", "", "", ""]
                tones[5:] = ["bad" if one.overflow else "", "bad" if one.error > forecast.max_error else ""]
                cell = [{"text": text, "tone": tone} for text, tone in zip(cells, tones, strict=True)]
                rows.append({"state": "", "cells": cell})
    return rows


def _shown(forecast: Shown) -> list[LayerForecast]:
    hurt = {layer for one in forecast.policies.values() for layer in one.hurt}
    return sorted(forecast.layers, key=lambda each: each.layer not in hurt)[:SHOWN]


def exponents(layer: LayerForecast) -> Drawing:
    """Draw how the values of a layer's tensors are distributed over powers of two, before any scale."""
    half = FLOAT_FORMATS["float16"]
    smallest, normal, above = half.min_exponent - half.mantissa_bits, half.min_exponent, half.max_exponent + 1
    present = [power for shares in layer.exponents.values() for power in shares]
    low, high = min([*present, smallest - 2]), max([*present, above]) + 1
    x = linear([low, high], "power of two", pad=0)
    looks = styles([(name, name, False) for name in layer.exponents])
    drawn = [
        Curve(name.replace("_", " "), [(e, shares.get(e, 0.0)) for e in range(low, high + 1)], look, stepped=True)
        for (name, shares), look in zip(layer.exponents.items(), looks, strict=True)
    ]
    y = linear([0.0, *(share for shares in layer.exponents.values() for share in shares.values())], "share of values")
    areas = [
        Area(low, smallest, "flushed", "float16 flushes to zero", "to zero"),
        Area(smallest, normal, "subnormal", "float16, subnormal", "subnormal"),
        Area(normal, above, "normal", "float16, normal", "normal"),
        Area(above, high, "overflow", "float16 overflows", "overflow"),
    ]
    said = "; ".join(
        f"{name.replace('_', ' ')}: 2^{min(shares)} to 2^{max(shares) + 1}"
        for name, shares in layer.exponents.items()
        if shares
    )
    return curves(layer.layer or "(the model)", f"Values without loss scale. {said}", x, y, drawn, areas)
