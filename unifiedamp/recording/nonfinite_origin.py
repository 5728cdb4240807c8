"""Where inf or nan came from: the first layer of the forward pass, else the first gradient of the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..backend.recording import Activation


def layer_of(name: str) -> str:
    """Return the path of the layer that a parameter, or another layer, belongs to; "" for one of the model itself."""
    return name.rpartition(".")[0]


def first_activation(activations: Sequence[Activation]) -> dict[str, Any] | None:
    """Return where inf or nan first appeared in the forward pass, None where it did not.

    Returns:
        "layer" and its "kind"; "place": "output", "input" (the batch itself, on its way into the model), or "inside":
        an operation that the layer runs itself, before its part "before" and after the layer "after".
    """
    kinds = {each.layer: each.kind for each in activations}
    after = ""
    for each in activations:
        if not math.isfinite(each.largest):
            if each.place == "input" and each.layer:
                layer = layer_of(each.layer)
                about = {"layer": layer, "kind": kinds.get(layer, ""), "place": "inside"}
                return {**about, "before": each.layer, "after": after}
            return {"layer": each.layer, "kind": each.kind, "place": each.place, "before": "", "after": after}
        if each.place == "output":
            after = each.layer
    return None


def first_gradient(bad: Iterable[str], order: Sequence[str]) -> str | None:
    """Return the gradient that inf or nan reached first, None for an empty ``bad``.

    The backward pass goes from the last layer to the first, so that is the one whose layer ran last.

    Args:
        bad: names of the gradients that hold inf or nan.
        order: parameter names in the order in which their layers ran.
    """
    places = {name: place for place, name in enumerate(order)}
    return max(bad, key=lambda name: places.get(name, -1), default=None)


def run_order(parameters: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Return parameters in the order in which their layers ran; those of layers not seen come first.

    Args:
        parameters: in the order of the model.
        layers: paths of layers in the order of their last output.
    """
    places = {layer: place for place, layer in enumerate(layers)}
    return sorted(parameters, key=lambda name: places.get(layer_of(name), -1))
