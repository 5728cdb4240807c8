"""Linear layers whose forward runs in float8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..layer_paths import modules_by_path
from .autocast import Region, in_bfloat16
from .float8 import UNKNOWN, How, linear, takes
from .float8_casts import Scaled
from .float8_scales import LayerScales
from .float8_state import Float8State
from .float8_weights import NOTHING, CachedWeight, Pair
from .gathered_weight import GatheredWeight
from .layers import Forward


class Float8Forward(Forward):
    """A linear layer's ``forward`` in float8 where autocast to bfloat16 is on, unchanged elsewhere.

    Args:
        module: a ``torch.nn.Linear``.
        region: a region without autocast, for the layer's device type.
        emulate: see ``float8_products.product``.
        how: how the layer computes.
        scales: of delayed scaling; else None.
        cached: the cache of the weight; None where each forward pass casts it.
    """

    def __init__(
        self,
        module: torch.nn.Linear,
        region: Region,
        emulate: bool,
        how: How,
        scales: LayerScales | None,
        cached: CachedWeight | None,
    ) -> None:
        super().__init__(module)
        self._linear = module
        self._region = region
        self._device = region.device
        self._emulate, self._how = emulate, how
        self._scales, self._cached = scales, cached

    def __call__(self, x: Any) -> Any:
        """Run the layer."""
        if self.removed or not in_bfloat16(self._device) or not takes(x):
            return self.plain(x)
        with self._region:
            weight = self._linear.weight
            scales = UNKNOWN if self._scales is None else self._scales.of_call(x)
            if isinstance(weight, GatheredWeight):
                low: Pair = Scaled(weight.low, weight.unscale), None
            else:
                low = NOTHING if self._cached is None else self._cached.get(weight)
            return linear(x, weight, self._linear.bias, self._emulate, self._how, scales, *low)


def wrap(
    model: torch.nn.Module,
    paths: Sequence[str],
    device_type: str,
    how: How,
    emulate: bool,
    state: Float8State,
    prefix: str = "",
) -> list[Callable[[], None]]:
    """Run layers of a model in float8; return what undoes it.

    Args:
        model: the model, on the session's device.
        paths: of the layers.
        device_type: the session's.
        how: how they compute.
        emulate: see ``float8_products.product``.
        state: the session's.
        prefix: of the layers' names in the state.
    """
    modules: dict[str, Any] = modules_by_path(model)
    region, undo = Region(device_type, None), []
    names = {path: prefix + (path or "(the model)") for path in paths}
    sizes = {name: (modules[path].in_features, modules[path].out_features) for path, name in names.items()}
    scales = state.scaling.add(sizes) if state.scaling is not None else {}
    if state.gathered is not None and how.whole_weight:
        undo += state.gathered.add(model, {name: modules[path] for path, name in names.items()}, scales)
    for path, name in names.items():
        module, known = modules[path], scales.get(name)
        cached = None if state.weights is None else state.weights.add(module, how, known)
        undo.append(Float8Forward(module, region, emulate, how, known, cached).remove)
    return undo
