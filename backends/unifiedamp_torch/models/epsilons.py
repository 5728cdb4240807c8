"""The epsilons of layers and optimizers, and what they are added in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from unifiedamp.backend import Policy, recording

from ..layer_paths import plain_name
from ..precision.layers import dtype_at, layer_dtypes

NAMES = ("eps", "epsilon", "_eps", "_epsilon", "variance_epsilon")
_NORMALIZING = "torch.nn.modules."
"""torch's own normalizing kernels add their epsilon in float32 whatever their inputs are."""


def epsilons(
    models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], policy: Policy
) -> Iterator[recording.Epsilon]:
    """Yield the epsilons of layers, then those of optimizers (added in the dtype of their parameters)."""
    for model in models:
        dtypes = layer_dtypes(model, policy)
        for path, module in model.named_modules():
            layer = plain_name(path)
            own = dtype_at(layer, dtypes) or policy.region_dtype
            dtype = "float32" if type(module).__module__.startswith(_NORMALIZING) else own
            for name, value in _of(vars(module)):
                yield recording.Epsilon(layer, name, value, dtype)
    for optimizer in optimizers:
        found = {(name, value) for group in optimizer.param_groups for name, value in _of(group)}
        first = next(param for group in optimizer.param_groups for param in group["params"])
        dtype = str(first.dtype).removeprefix("torch.")
        for name, value in sorted(found):
            yield recording.Epsilon(type(optimizer).__name__, name, value, dtype)


def _of(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in NAMES:
        value = values.get(name)
        if isinstance(value, float) and value > 0:
            yield name, value
