"""Recipes of ``mixed_float8``: how the operands of a linear layer's three products are scaled to few bits.

==========  ========================================  =====================================
recipe      one scale per                             scale from
==========  ========================================  =====================================
tensorwise  tensor                                    its present largest magnitude (amax)
delayed     tensor                                    the largest amax of earlier steps
rowwise     row of each product's operand             the row's present amax
block128    1 x 128 values of inputs and gradients,   the block's present amax
            128 x 128 of weights
==========  ========================================  =====================================

``rowwise_gw_hp`` is ``rowwise`` with ``wgrad="bfloat16"``, as torchao names it. The recipes of :data:`BLOCK_RECIPES`
are formats of blocks along the dimension that a product sums over; they are emulated alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PolicyError, nearest
from ..formats import BLOCK_FORMATS

BLOCK_RECIPES = {
    "mxfp8": "mxfp8_e4m3",
    "mxfp6": "mxfp6_e3m2",
    "mxfp6_e2m3": "mxfp6_e2m3",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "mxint8": "mxint8",
    "int8": "int8",
}
"""Recipe → the format of ``BLOCK_FORMATS`` that inputs, weights and gradients have. MXFP6 is E3M2 by default, whose
exponents reach further.
"""

RECIPES = ("tensorwise", "delayed", "rowwise", "rowwise_gw_hp", "block128", *BLOCK_RECIPES)
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
    "mxfp8blockscaling": "mxfp8", "nvfp4blockscaling": "nvfp4",
    # formats whose elements are named
    "mxfp8_e4m3": "mxfp8", "mxfp6_e3m2": "mxfp6", "mxfp4_e2m1": "mxfp4",
}  # fmt: skip
"""Names of other libraries, in lower case → the recipe."""

_SCALES = {
    "tensorwise": "one scale per tensor, from its present largest magnitude",
    "delayed": "one scale per tensor, from the largest magnitudes of the last {history} steps",
    "rowwise": "one power of two per row of each product's operands",
    "block128": "one power of two per 1 x 128 inputs and gradients, per 128 x 128 weights",
    "e8m0": "one power of two (E8M0) per {size} values along the summed dimension",
    "e4m3": "one E4M3 scale per {size} values along the summed dimension, one float32 scale per tensor",
    "float32": "one float32 scale per {size} values along the summed dimension",
}
"""Scaling of a recipe, or scale of its block format → what has one scale."""
_SAID = {"fprop": "the forward product", "dgrad": "the input gradient", "wgrad": "the weight gradient"}


@dataclass(frozen=True)
class Float8Recipe:
    """How float8 linear layers compute.

    Attributes:
        scaling: "tensorwise", "delayed", "rowwise", "block128" or one of :data:`BLOCK_RECIPES`.
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
    def block_format(self) -> str | None:
        """The format of ``BLOCK_FORMATS`` that all operands have; None where they are float8."""
        return BLOCK_RECIPES.get(self.scaling)

    @property
    def gradient_format(self) -> str:
        """The format of gradients: "e5m2" of tensorwise and delayed scales, "e4m3" of finer ones, or the blocks'."""
        return self.block_format or ("e5m2" if self.scaling in ("tensorwise", "delayed") else "e4m3")

    @property
    def multiple(self) -> int:
        """What a layer's inputs and outputs are multiples of: the size of blocks, 16 for other products."""
        if self.block_format:
            return BLOCK_FORMATS[self.block_format].size
        return 128 if self.scaling == "block128" else 16

    @property
    def layer_format(self) -> str:
        """What ``amp.explain()`` says that a layer runs in: "float8", or the recipe's name of a block format."""
        return self.name if self.block_format else "float8"

    def emulation_text(self) -> str:
        """Return how products are emulated, for ``amp.explain()``."""
        return f"float32 products of operands rounded to {self.block_format or 'float8'}"

    def formats_text(self) -> str:
        """Return what each product multiplies, for ``amp.explain()``."""
        kept = self.block_format or "e4m3"
        left = {"fprop": kept, "dgrad": self.gradient_format, "wgrad": self.gradient_format}
        said = {
            product: f"{left[product]} x {kept}" if getattr(self, product) == "float8" else "bfloat16"
            for product in PRODUCTS
        }
        return ", ".join(f"{product}: {operands}" for product, operands in said.items())

    def scales_text(self) -> str:
        """Return what has one scale, for ``amp.explain()``."""
        block = BLOCK_FORMATS[self.block_format] if self.block_format else None
        said = _SCALES[block.scale if block else self.scaling]
        said = said.format(history=self.amax_history, size=block and block.size)
        return f"{said}, margin {self.margin}" if self.margin else said

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
