"""Which dense layers of a model run in float8, and what ``amp.explain()`` says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Float8Recipe, PlanRow

from .._types import Dense, Layer
from ..internals import kernel
from . import layers

RULE = (
    "Dense and EinsumDense layers whose inputs and outputs are multiples of {multiple}, unless layer_overrides names "
    "them"
)


def rejection_reason(layer: Layer | Dense, policy_name: str, kept: str | None, multiple: int) -> str | None:
    """Return why a layer does not run in float8, "" where it does; None for layers that are not dense.

    Args:
        layer: any Keras layer.
        policy_name: the dtype policy that layers without an override have.
        kept: the dtype that ``layer_overrides`` gave it, or None.
        multiple: what the recipe's products need sizes to be multiples of.
    """
    kind: Any = layers.original_class(layer)
    bases = [base for base in (tf.keras.layers.Dense, tf.keras.layers.EinsumDense) if issubclass(kind, base)]
    if not bases:
        return None
    if kept:
        return f"layer_overrides: {kept}"
    if layer.dtype_policy.name != policy_name:
        return f"its dtype policy is {layer.dtype_policy.name!r}"
    if kind.call is not bases[0].call:
        return f"{kind.__name__} overrides call"
    if getattr(layer, "lora_enabled", False):
        return "it has LoRA weights"
    sizes = dict(zip(("inputs", "outputs"), sizes_of(layer), strict=True))
    odd = [f"{name}={size}" for name, size in sizes.items() if size % multiple]
    return f"{', '.join(odd)}: not a multiple of {multiple}" if odd else ""


def sizes_of(layer: Any) -> tuple[int, int]:
    """Return the inputs and outputs of a dense layer."""
    shape = [int(size) for size in kernel(layer).shape]
    labels: Any = range(2)
    kept: Any = (1,)
    if hasattr(layer, "equation"):
        operands, _, kept = layer.equation.replace(" ", "").partition("->")
        labels = operands.partition(",")[2].replace(".", "")
    sizes = {"inputs": 1, "outputs": 1}
    for label, size in zip(labels, shape, strict=True):
        sizes["outputs" if label in kept else "inputs"] *= size
    return sizes["inputs"], sizes["outputs"]


def rows(chosen: Mapping[str, str], recipe: Float8Recipe) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``: recipe and rule, and each dense layer of the prepared models."""
    native = recipe.emulation_text()
    count = f"{sum(not why for why in chosen.values())} of {len(chosen)} dense layers" if chosen else "dense layers"
    found = [
        PlanRow("float8", count, native, "emulated", RULE.format(multiple=recipe.multiple)),
        PlanRow("float8 recipe", recipe.name, recipe.formats_text(), "emulated", recipe.scales_text()),
    ]
    for path, why in chosen.items():
        if why:
            found.append(PlanRow(f"float8.{path}", "not float8", "as its dtype policy says", note=why))
        else:
            found.append(PlanRow(f"float8.{path}", recipe.layer_format, native, "emulated"))
    return found
