"""``Forecast``: what number formats would do to a model's layers, and the policies that follow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..notebook import table_html
from ..output.files import write_whole
from ..policy import Policy
from .choice import ALL_FORMATS, FORMATS, PolicyForecast, best_loss_scale, cheapest, policy_for
from .counted import read_counts
from .layers import COLUMNS, IN_16_BITS, LayerForecast, layer_forecasts, scaled_gradients
from .scaled_formats import SCALED_FORMATS
from .totals import LayerTotals


@dataclass(frozen=True)
class Forecast:
    """What ``amp.forecast`` found. ``str(forecast)`` is a table of layers and formats, and a policy for each format.

    Attributes:
        about: of the session: "backend", "framework", "device", "policy", "steps" that were counted, "asked".
        max_error: the mean squared relative error of a tensor that is accepted.
        loss_scale: that float16 gradients were rounded with.
        layers: each layer that multiplies matrices or convolves, in the order in which they ran.
        policies: format that was asked for → the mixed policy that stays within ``max_error``.
        notes: what else is to be said, a sentence each.
    """

    about: Mapping[str, Any]
    max_error: float
    loss_scale: float
    layers: Sequence[LayerForecast]
    policies: Mapping[str, PolicyForecast]
    notes: Sequence[str]

    @classmethod
    def of(
        cls, about: Mapping[str, Any], totals: Sequence[LayerTotals], max_error: float, formats: Sequence[str] = FORMATS
    ) -> Forecast:
        """Return the forecast that follows from what was counted.

        Args:
            about: see the attribute; "runs" has preset → why it does not run on the device, empty where it does.
            totals: of each layer.
            max_error: see the attribute.
            formats: those to make policies for.
        """
        gradients = scaled_gradients(totals)
        scale = best_loss_scale(totals, gradients, max_error)
        layers = layer_forecasts(totals, gradients, scale, max_error, formats)
        policies = {one: policy_for(one, layers, scale, max_error) for one in ALL_FORMATS if one in formats}
        found = {key: value for key, value in about.items() if key != "runs"}
        return cls(found, max_error, scale, layers, policies, _notes(about, layers, policies))

    @classmethod
    def of_counted(cls, counted: Mapping[str, Any], max_error: float, formats: Sequence[str] = FORMATS) -> Forecast:
        """Return the same from what ``ForecastRun.counted`` returned.

        Raises:
            ConfigError: another version wrote it, or it is damaged.
        """
        return cls.of(*read_counts(counted), max_error, formats)

    @property
    def policy(self) -> Policy:
        """The cheapest of ``policies``, by the bytes of the numbers that are multiplied; float32 where none is."""
        return cheapest(self.policies)

    def rows(self) -> list[list[str]]:
        """Return the cells of the table, a row per layer, below :meth:`heads`."""
        columns = self.columns()
        return [
            [each.layer or "(the model)", each.kind, *(self.cell(each, column) for column in columns), _scale(each)]
            for each in self.layers
        ]

    def columns(self) -> list[str]:
        """Return the formats of the table."""
        return [*COLUMNS, *(name for name in self.policies if name in SCALED_FORMATS)]

    def heads(self) -> list[str]:
        """Return the heads of the table's columns."""
        return ["layer", "kind", *self.columns(), "float16 loss scale"]

    def cell(self, layer: LayerForecast, column: str) -> str:
        """Return what a format does to a layer: why it hurts, or else the largest error."""
        if column not in IN_16_BITS and layer.float8:
            return f"not in float8: {layer.float8}" if column == "float8" else "-"
        return layer.why_hurt(column, self.max_error) or f"{layer.worst(column).error:.1e}"

    def summary(self) -> list[str]:
        """Return the policies and notes, a line each; the cheapest policy is the last."""
        lines = [f"{name}: {one.reason or one.policy}" for name, one in self.policies.items()]
        return [*lines, *self.notes, f"cheapest within {self.max_error:g}: {self.policy}"]

    def title(self) -> str:
        """Return what was looked at, in one line."""
        about = self.about
        return f"{about['steps']} steps of {about['policy']} on {about['backend']} {about['device']}"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the forecast as an HTML page, one file without scripts. Needs jinja2.

        Raises:
            OSError: it cannot be written.
        """
        from .page import page

        write_whole(Path(path), page(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.about,
            "max_error": self.max_error,
            "loss_scale": self.loss_scale,
            "layers": [each.to_dict() for each in self.layers],
            "policies": {name: one.to_dict() for name, one in self.policies.items()},
            "chosen": str(self.policy),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        cells = [self.heads(), *self.rows()]
        widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([self.title(), *(line.rstrip() for line in lines), *self.summary()])

    def __repr__(self) -> str:
        return f"<Forecast of {len(self.layers)} layers from {self.title()}; print it>"

    def _repr_html_(self) -> str:
        return table_html(self.title(), self.rows(), self.heads())


def _scale(layer: LayerForecast) -> str:
    return " to ".join(f"2**{math.log2(one):g}" if one else "none" for one in (layer.scale_needed, layer.scale_limit))


def _notes(
    about: Mapping[str, Any], layers: Sequence[LayerForecast], policies: Mapping[str, PolicyForecast]
) -> list[str]:
    found = []
    if about["steps"] < about["asked"]:
        found.append(f"the run had {about['steps']} of the {about['asked']} steps asked for")
    for each in layers:
        for tensor, steps in each.non_finite.items():
            found.append(f"{each.layer}: the {tensor.replace('_', ' ')} held inf or nan in {steps} steps")
    for name in policies:
        why = about.get("runs", {}).get(f"mixed_{name}", "")
        if why:
            found.append(f"mixed_{name} does not run on {about['device']}: {why}; ';emulate=true' runs its numerics")
    return found
