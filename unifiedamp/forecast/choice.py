"""The policies that follow from a forecast: which layers each format would hurt, and which policy is cheapest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

from ..loss_scale import DynamicLossScale
from ..policy import PRESETS, Policy
from .layers import IN_16_BITS, SCALES, LayerForecast, ScaledGradients
from .scaled_formats import SCALED_FORMATS
from .totals import LayerTotals

FORMATS = ("bfloat16", "float16", "float8")
"""Formats that a policy is made for; of two that cost the same the first is chosen, as bfloat16 needs no loss scale."""
ALL_FORMATS = (*FORMATS, *SCALED_FORMATS)
"""Those, and formats with a scale for each row or block."""
_BYTES = {"float8": 1.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
_BYTES |= {name: format.bytes for name, format in SCALED_FORMATS.items()}


@dataclass(frozen=True)
class PolicyForecast:
    """A mixed policy that stays within the error.

    Attributes:
        format: that its products run in.
        policy: with ``layer_overrides`` for the layers that the format would hurt.
        hurt: layer → why; those that ``layer_overrides`` names.
        cost: bytes per multiplied number over all products, on average: 4 for float32, 1 for float8 throughout.
        reason: why there is no such policy; empty where there is one.
    """

    format: str
    policy: Policy
    hurt: Mapping[str, str]
    cost: float
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = {"policy": str(self.policy), "hurt": dict(self.hurt), "cost": self.cost}
        return {**found, "reason": self.reason} if self.reason else found


def best_loss_scale(layers: Sequence[LayerTotals], gradients: Sequence[ScaledGradients], max_error: float) -> float:
    """Return the loss scale at which float16 gradients of the least work are hurt; of several the nearest to 2**16.

    2**16 is where ``DynamicLossScale`` begins. A layer is hurt where a gradient overflows, or its mean squared relative
    error is above ``max_error``.

    Args:
        layers: what was counted of each.
        gradients: of each.
        max_error: see above.
    """
    usual = SCALES.index(DynamicLossScale().initial_scale)

    def cost(place: int) -> tuple[int, int]:
        hurt = (each.work for each, its in zip(layers, gradients, strict=True) if its.hurt(place, max_error))
        return sum(hurt), abs(place - usual)

    return SCALES[min(range(len(SCALES)), key=cost)]


def policy_for(format: str, layers: Sequence[LayerForecast], loss_scale: float, max_error: float) -> PolicyForecast:
    """Return the mixed policy of a format with the overrides that it needs.

    Args:
        format: one of :data:`ALL_FORMATS`.
        layers: the forecast of each.
        loss_scale: for float16, the initial one.
        max_error: the mean squared relative error that is accepted.
    """
    chosen = {each.layer: _layer_format(format, each, max_error) for each in layers}
    small = format not in IN_16_BITS
    usual = {each.layer: "bfloat16" if small and each.float8 else format for each in layers}
    outer = [each.layer for each in layers if each.holds_layers and chosen[each.layer] != usual[each.layer]]
    around = {each.layer: next((one for one in outer if each.layer.startswith(f"{one}.")), "") for each in layers}
    chosen |= {layer: chosen[one] for layer, one in around.items() if one}
    moved = {layer: name for layer, name in chosen.items() if name != usual[layer]}
    hurt = {each.layer: each.why_hurt(usual[each.layer], max_error) for each in layers if each.layer in moved}
    hurt = {layer: why or f"inside {around[layer]}" for layer, why in hurt.items()}
    policy = _plain_policy(format)
    if moved:
        globs = {escape(layer): name for layer, name in moved.items() if layer and not around[layer]}
        globs |= {f"{escape(layer)}.*": chosen[layer] for layer in outer if layer}
        policy = policy.replace(layer_overrides=globs)
    if format == "float16" and loss_scale != DynamicLossScale().initial_scale:
        policy = policy.replace(loss_scale=DynamicLossScale(initial_scale=loss_scale))
    work = sum(each.work for each in layers)
    cost = sum(each.work * _BYTES[chosen[each.layer]] for each in layers) / max(1, work)
    return PolicyForecast(format, policy, hurt, cost, _why_none(format, layers, moved))


def _plain_policy(format: str) -> Policy:
    if format not in SCALED_FORMATS:
        return PRESETS[f"mixed_{format}"]
    recipe = SCALED_FORMATS[format].recipe
    return PRESETS["mixed_float8"].replace(recipe=recipe) if recipe else PRESETS["mixed_bfloat16"]


def _why_none(format: str, layers: Sequence[LayerForecast], moved: Mapping[str, str]) -> str:
    """Return why a format has no policy; empty where it has."""
    if "" in moved:
        return "the model itself is one layer, which layer_overrides cannot name"
    if format in SCALED_FORMATS and not SCALED_FORMATS[format].recipe:
        return f"{format} runs emulated alone" + (f"; it would hurt {', '.join(moved)}" if moved else "")
    if format not in IN_16_BITS and all(each.float8 for each in layers):
        return "no layer would run in float8"
    return ""


def _layer_format(format: str, layer: LayerForecast, max_error: float) -> str:
    """Return the cheapest format that a layer can run in under a policy of this one."""
    tried = [format] if format in IN_16_BITS else ["bfloat16"] if layer.float8 else [format, "bfloat16"]
    return next((one for one in tried if not layer.why_hurt(one, max_error)), "float32")


def cheapest(policies: Mapping[str, PolicyForecast]) -> Policy:
    """Return the policy with the lowest cost; float32 where none is cheaper."""
    usable = [one for one in policies.values() if not one.reason and one.cost < _BYTES["float32"]]
    return min(usable, key=lambda one: one.cost).policy if usable else PRESETS["float32"]
