"""Where inf or nan came from: the first layer of the forward pass, else the first gradient of the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .facts import Activation


def layer_of(parameter: str) -> str:
    """Return the path of the layer that a parameter belongs to; "" for one of the model itself."""
    return parameter.rpartition(".")[0]


def first_activation(activations: Sequence[Activation]) -> dict[str, Any] | None:
    """Return where inf or nan first appeared in the forward pass, None where it did not.

    An input that came out of no layer is the batch itself, or was made between the layer that ran before and this one.
    """
    before = ""
    for each in activations:
        if not math.isfinite(each.largest):
            return {"layer": each.layer, "kind": each.kind, "place": each.place, "after": before}
        if each.place == "output":
            before = each.layer
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
