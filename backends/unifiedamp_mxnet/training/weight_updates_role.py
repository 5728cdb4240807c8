"""The role that updates bfloat16 parameters: what a session's state holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import WeightUpdates

from ..mxnet_api import NUMPY_API
from .prepared_optimizers import PreparedOptimizers
from .rounded_weights import compensations


class MXNetWeightUpdates(WeightUpdates):
    """Steps of the Trainers' updaters over float32 values, which are rounded back.

    Args:
        optimizers: the session's Trainers.
    """

    means = "the Trainer's updater over float32 values, rounded back in numpy"
    if NUMPY_API:
        means += "; of emulated parameters alone"

    def __init__(self, optimizers: PreparedOptimizers) -> None:
        self._optimizers = optimizers

    def steps(self) -> list[int]:
        return [weights.steps for _, weights in self._optimizers.rounded()]

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for prepared, weights in self._optimizers.rounded():
            found |= compensations(weights, prepared.buffer.name)
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            prepared.buffer.name(index): tuple(prepared.trainer._params[index].shape)
            for prepared, weights in self._optimizers.rounded()
            for index in weights.places()
        }

    def write(self, compensation: Mapping[str, Any], steps: Sequence[int]) -> None:
        for (prepared, weights), count in zip(self._optimizers.rounded(), steps, strict=True):
            for index in weights.places():
                weights.put(index, compensation.get(prepared.buffer.name(index)))
            weights.steps = count
