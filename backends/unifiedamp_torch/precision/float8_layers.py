"""Which linear layers of a model run in float8, and what ``amp.explain()`` says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from unifiedamp.backend import FLOAT8_PRODUCTS, Float8Recipe, PlanRow

from ..layer_paths import modules_by_path
from .float8 import How
from .float8_casts import BLOCKS, ROW, TENSOR
from .layers import dtype_at

SCALINGS = {"tensorwise": TENSOR, "delayed": TENSOR, "rowwise": ROW, "block128": BLOCKS}
"""Scaling of a recipe → what has one scale; recipes of block formats have theirs."""


def how(recipe: Float8Recipe, kernels: bool = False) -> How:
    """Return how the layers of a recipe compute; ``kernels`` as in ``float8_casts.cast``."""
    in_float8 = [getattr(recipe, product) == "float8" for product in FLOAT8_PRODUCTS]
    scaling = recipe.block_format or SCALINGS[recipe.scaling]
    return How(scaling, *in_float8)._replace(kernels=kernels)


def choose(
    model: torch.nn.Module, dtypes: Mapping[str, str], multiple: int = 16, min_features: int = 0
) -> dict[str, str]:
    """Return layer path → why it does not run in float8 ("" where it does), for every linear layer.

    Args:
        model: the model.
        dtypes: layer path → dtype that ``layer_overrides`` gave it.
        multiple: what the recipe's products need sizes to be multiples of.
        min_features: the smallest number of inputs and of outputs.
    """
    return {
        path: rejection_reason(path, module, dtypes, multiple, min_features)
        for path, module in modules_by_path(model).items()
        if isinstance(module, torch.nn.Linear)
    }


def rejection_reason(
    path: str, module: torch.nn.Linear, dtypes: Mapping[str, str], multiple: int = 16, min_features: int = 0
) -> str:
    """Return why a linear layer does not run in float8; "" where it does."""
    kept = dtype_at(path, dtypes)
    if kept:
        return f"layer_overrides: {kept}"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "the layer that holds it uses its weight without calling it"
    if type(module).forward is not torch.nn.Linear.forward:
        return f"{type(module).__name__} overrides forward"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    sizes = {"in_features": module.in_features, "out_features": module.out_features}
    odd = [f"{name}={size}" for name, size in sizes.items() if size % multiple or not size]
    if odd:
        return f"{', '.join(odd)}: not a multiple of {multiple}"
    small = [f"{name}={size}" for name, size in sizes.items() if size < min_features]
    return f"{', '.join(small)}: below float8_min_features={min_features}" if small else ""


def rows(
    models: Sequence[Mapping[str, str]], recipe: Float8Recipe, emulate: bool, min_features: int = 0
) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``: recipe and rule, and each linear layer once models are prepared.

    Args:
        models: what :func:`choose` returned for each prepared model.
        recipe: the session's.
        emulate: see ``float8_products.product``.
        min_features: see :func:`choose`.
    """
    native = recipe.emulation_text() if emulate else "torch._scaled_mm, forward and backward"
    effect = "emulated" if emulate else "native"
    chosen = {
        f"model{index}.{path}" if len(models) > 1 else path or "(the model)": why
        for index, model in enumerate(models)
        for path, why in model.items()
    }
    count = f"{sum(not why for why in chosen.values())} of {len(chosen)} linear layers" if models else "linear layers"
    found = [
        PlanRow("float8", count, native, effect, _rule(recipe.multiple, min_features)),
        PlanRow("float8 recipe", recipe.name, recipe.formats_text(), effect, recipe.scales_text()),
    ]
    for path, why in chosen.items():
        if why:
            found.append(PlanRow(f"float8.{path}", "not float8", "as autocast runs it", note=why))
        else:
            found.append(PlanRow(f"float8.{path}", recipe.layer_format, native, effect))
    return found


def _rule(multiple: int, min_features: int) -> str:
    least = f" and at least {min_features}" if min_features else ""
    return (
        f"torch.nn.Linear whose in_features and out_features are multiples of {multiple}{least}, "
        "unless layer_overrides names it or a layer that holds it"
    )
