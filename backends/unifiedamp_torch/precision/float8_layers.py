"""Which linear layers of a model run in float8, and replacing their forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from unifiedamp.backend import PlanRow

from ..layer_paths import modules_by_path
from .autocast import Region
from .float8 import MULTIPLE, linear, takes
from .layers import Forward, dtype_at

RULE = (
    f"torch.nn.Linear whose in_features and out_features are multiples of {MULTIPLE}, "
    "unless layer_overrides names it or a layer that holds it"
)


class Float8Forward(Forward):
    """A linear layer's ``forward`` in float8 where autocast to bfloat16 is on, unchanged elsewhere.

    Args:
        module: a ``torch.nn.Linear``.
        region: a region without autocast, for the layer's device type.
        emulate: see ``float8.product``.
    """

    def __init__(self, module: torch.nn.Linear, region: Region, emulate: bool) -> None:
        super().__init__(module)
        self._linear = module
        self._region = region
        self._device = region.device
        self._emulate = emulate

    def __call__(self, x: Any) -> Any:
        """Run the layer."""
        device = self._device
        on = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
        if not on or not takes(x):
            return self.plain(x)
        with self._region:
            return linear(x, self._linear.weight, self._linear.bias, self._emulate)


def wrap(
    model: torch.nn.Module, chosen: Mapping[str, str], device_type: str, emulate: bool
) -> list[Callable[[], None]]:
    """Run the layers that :func:`choose` gave no reason against in float8; return what undoes it."""
    modules: dict[str, Any] = modules_by_path(model)
    region = Region(device_type, None)
    return [Float8Forward(modules[path], region, emulate).remove for path, why in chosen.items() if not why]


def choose(model: torch.nn.Module, dtypes: Mapping[str, str]) -> dict[str, str]:
    """Return layer path → why it does not run in float8 ("" where it does), for every linear layer.

    Args:
        model: the model.
        dtypes: layer path → dtype that ``layer_overrides`` gave it.
    """
    return {
        path: rejection_reason(path, module, dtypes)
        for path, module in modules_by_path(model).items()
        if isinstance(module, torch.nn.Linear)
    }


def rejection_reason(path: str, module: torch.nn.Linear, dtypes: Mapping[str, str]) -> str:
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
    odd = [f"{name}={size}" for name, size in sizes.items() if size % MULTIPLE or not size]
    return f"{', '.join(odd)}: not a multiple of {MULTIPLE}" if odd else ""


def rows(models: Sequence[Mapping[str, str]], emulate: bool) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``: the rule, and each linear layer once models are prepared.

    Args:
        models: what :func:`choose` returned for each prepared model.
        emulate: see ``float8.product``.
    """
    native = "float32 products of operands rounded to float8" if emulate else "torch._scaled_mm, forward and backward"
    effect = "emulated" if emulate else "native"
    chosen = {
        f"model{index}.{path}" if len(models) > 1 else path or "(the model)": why
        for index, model in enumerate(models)
        for path, why in model.items()
    }
    count = f"{sum(not why for why in chosen.values())} of {len(chosen)} linear layers" if models else "linear layers"
    found = [PlanRow("float8", count, native, effect, RULE)]
    for path, why in chosen.items():
        if why:
            found.append(PlanRow(f"float8.{path}", "not float8", "as autocast runs it", note=why))
        else:
            found.append(PlanRow(f"float8.{path}", "float8", native, effect))
    return found
