"""Recipes of ``mixed_float8``: how the operands of a linear layer's three products are scaled to float8.

==========  ========================================  =====================================
recipe      one scale per                             scale from
==========  ========================================  =====================================
tensorwise  tensor                                    its present largest magnitude (amax)
delayed     tensor                                    the largest amax of earlier steps
rowwise     row of each product's operand             the row's present amax
block128    1 x 128 values of inputs and gradients,   the block's present amax
            128 x 128 of weights
==========  ========================================  =====================================

``rowwise_gw_hp`` is ``rowwise`` with ``wgrad="bfloat16"``, as torchao names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PolicyError, nearest

RECIPES = ("tensorwise", "delayed", "rowwise", "rowwise_gw_hp", "block128")
"""What ``Policy.recipe`` can be set to."""

PRODUCTS = {
    "fprop": "the forward product, inputs times weights",
    "dgrad": "the gradient of the inputs, output gradients times weights",
    "wgrad": "the gradient of the weights, output gradients times inputs",
}
"""Product of a linear layer → what it is."""

PRODUCT_DTYPES = ("float8", "bfloat16")
"""What a product can run in."""

HISTORY, LARGEST_HISTORY, LARGEST_MARGIN = 1024, 9999, 9
"""The default of ``amax_history``, which is Transformer Engine's, and the largest settings."""

RECIPE_ALIASES = {
    # torchao
    "rowwise_with_gw_hp": "rowwise_gw_hp", "dynamic": "tensorwise", "axiswise": "rowwise",
    "all_tensorwise": "tensorwise", "all_axiswise": "rowwise", "lw_axiswise_with_gw_hp": "rowwise_gw_hp",
    # Transformer Engine
    "float8currentscaling": "tensorwise", "delayedscaling": "delayed", "float8blockscaling": "block128",
    "current": "tensorwise", "blockwise": "block128",
}  # fmt: skip
"""Names of other libraries, in lower case → the recipe."""

_ELSEWHERE = {"mxfp8blockscaling", "mxfp8", "nvfp4blockscaling", "nvfp4"}
_SAID = {"fprop": "the forward product", "dgrad": "the input gradient", "wgrad": "the weight gradient"}


@dataclass(frozen=True)
class Float8Recipe:
    """How float8 linear layers compute.

    Attributes:
        scaling: "tensorwise", "delayed", "rowwise" or "block128".
        fprop, dgrad, wgrad: "float8", or "bfloat16" for a product that is left in bfloat16; see :data:`PRODUCTS`.
        amax_history: of delayed scaling, the optimizer steps whose largest magnitudes set the scales.
        margin: of delayed scaling, powers of two that are left between that magnitude and float8's maximum.
    """

    scaling: str = "tensorwise"
    fprop: str = "float8"
    dgrad: str = "float8"
    wgrad: str = "float8"
    amax_history: int = HISTORY
    margin: int = 0

    @property
    def name(self) -> str:
        """The recipe's name as policies write it."""
        return "rowwise_gw_hp" if self.scaling == "rowwise" and self.wgrad == "bfloat16" else self.scaling

    @property
    def gradient_format(self) -> str:
        """The float8 format of gradients: "e5m2" of tensorwise and delayed scales, "e4m3" of finer ones."""
        return "e5m2" if self.scaling in ("tensorwise", "delayed") else "e4m3"

    def settings(self) -> dict[str, Any]:
        """Return setting of the policy's text → value, of those that differ from ``mixed_float8``'s."""
        implied = {"recipe": "tensorwise", **dict.fromkeys(PRODUCTS, "float8"), "amax_history": HISTORY, "margin": 0}
        mine = {name: getattr(self, name) for name in implied if name != "recipe"} | {"recipe": self.name}
        if self.name == "rowwise_gw_hp":
            implied["wgrad"] = "bfloat16"
        return {name: mine[name] for name in implied if mine[name] != implied[name]}

    def __str__(self) -> str:
        low = [said for name, said in _SAID.items() if getattr(self, name) == "bfloat16"]
        return ", ".join([self.scaling, *(f"{said} in bfloat16" for said in low)])


def read_recipe(given: Mapping[str, Any], is_float8: bool) -> Float8Recipe:
    """Return the checked recipe of a policy's settings.

    Args:
        given: "recipe", the names of :data:`PRODUCTS`, "amax_history" and "margin"; ``wgrad`` None is the recipe's.
        is_float8: whether the policy computes in float8.

    Raises:
        PolicyError: a value is unknown, the settings contradict each other, or have no effect.
    """
    name = _recipe_name(given["recipe"])
    keeps_wgrad = name == "rowwise_gw_hp"
    products = {each: _product_dtype(each, given[each], keeps_wgrad) for each in PRODUCTS}
    history = _count(given["amax_history"], "amax_history", 1, LARGEST_HISTORY)
    margin = _count(given["margin"], "margin", 0, LARGEST_MARGIN)
    found = Float8Recipe("rowwise" if keeps_wgrad else name, **products, amax_history=history, margin=margin)
    if not is_float8 and found != Float8Recipe():
        raise PolicyError(
            f"{', '.join(found.settings())} has no effect without compute_dtype float8: use policy 'mixed_float8', or "
            "leave it out"
        )
    if "float8" not in products.values():
        raise PolicyError("fprop, dgrad and wgrad are all bfloat16, so nothing runs in float8: use 'mixed_bfloat16'")
    if name != "delayed" and (history, margin) != (HISTORY, 0):
        setting = "margin" if margin else "amax_history"
        raise PolicyError(f"{setting} has no effect with recipe {name!r}: it is for recipe 'delayed'")
    return found


def _recipe_name(value: Any) -> str:
    key = value.strip().lower() if isinstance(value, str) else ""
    key = RECIPE_ALIASES.get(key, key)
    if key in RECIPES:
        return key
    hint = nearest(str(value), [*RECIPES, *RECIPE_ALIASES])
    if key in _ELSEWHERE:
        hint = "; formats of blocks of 16 or 32 values are no float8 recipe here: the finest is 'block128'"
    raise PolicyError(f"recipe must be one of {', '.join(RECIPES)}, got {value!r}{hint}")


def _product_dtype(product: str, value: Any, keeps_wgrad: bool) -> str:
    kept = "bfloat16" if product == "wgrad" and keeps_wgrad else None
    if value is None and product == "wgrad":
        return kept or "float8"
    if value not in PRODUCT_DTYPES:
        raise PolicyError(
            f"{product} must be 'float8' or 'bfloat16', got {value!r}{nearest(str(value), PRODUCT_DTYPES)}"
        )
    if kept and value != kept:
        raise PolicyError("wgrad='float8' contradicts recipe 'rowwise_gw_hp': use recipe 'rowwise'")
    return str(value)


def _count(value: Any, setting: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PolicyError(f"{setting} must be a whole number from {low} to {high}, got {value!r}")
    return value
