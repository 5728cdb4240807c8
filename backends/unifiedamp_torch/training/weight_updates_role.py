"""The role that updates bfloat16 parameters: what a session's state holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import WeightUpdates

from ..device.arrays import like, whole
from .gradients import local_part
from .prepared import PreparedObjects


class TorchWeightUpdates(WeightUpdates):
    """Steps over float32 values in place of the parameters, which are rounded back.

    Args:
        prepared: the session's objects.
    """

    means = "the optimizer's step over float32 values in its param_groups, a few parameters at a time"

    def __init__(self, prepared: PreparedObjects) -> None:
        self._prepared = prepared

    def steps(self) -> list[int]:
        counts = self._prepared.updates.steps
        return [int(counts.get(id(optimizer), 0)) for optimizer in self._prepared.optimizers]

    def read(self) -> dict[str, Any]:
        kept = self._prepared.compensations.all()
        return {name: _array(kept[id(param)]) for name, param in self._named() if id(param) in kept}

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        prepared = self._prepared
        params = {id(param): param for model in prepared.models for param in model.parameters()}
        return [(prepared.names.of(param), param) for param in params.values()]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(param.shape) for name, param in self._named() if param.dtype is torch.bfloat16}

    @torch.no_grad()
    def write(self, compensation: Mapping[str, Any], steps: Sequence[int]) -> None:
        prepared = self._prepared
        for name, param in self._named():
            rest = None
            if name in compensation:
                rest = local_part(like(param, torch.from_numpy(compensation[name]))).bfloat16()
            prepared.compensations.put(param, rest)
        prepared.updates.steps = {
            id(optimizer): count for optimizer, count in zip(prepared.optimizers, steps, strict=True)
        }


def _array(tensor: torch.Tensor) -> Any:
    return whole(tensor).to("cpu", torch.float32, copy=True).numpy()
