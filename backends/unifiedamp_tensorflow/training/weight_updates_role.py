"""The role that updates bfloat16 variables: what a session's state holds of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import WeightUpdates as Role

from .._types import Tensor, Variable
from .prepared_objects import PreparedObjects
from .weight_updates import WeightUpdates


class TensorFlowWeightUpdates(Role):
    """Updates of float32 values in place of the variables, which are rounded back.

    Args:
        prepared: the session's objects.
    """

    means = "optimizer.update_step on a float32 value in place of each bfloat16 variable"

    def __init__(self, prepared: PreparedObjects) -> None:
        self._prepared = prepared

    def steps(self) -> list[int]:
        return [int(updates.count.value()) for updates in self._all()]

    def _all(self) -> list[WeightUpdates]:
        return [each.params.updates for each in self._prepared.optimizers if each.params.updates is not None]

    def _named(self) -> Iterator[tuple[str, str, WeightUpdates]]:
        """Yield (name in the state, name in the optimizer, updates) for the parameters."""
        seen: set[str] = set()
        for number, updates in enumerate(self._all()):
            for name in updates.rounded:
                saved = updates.saved[name]
                unique = saved if saved not in seen else f"{number}:{saved}"
                seen.add(unique)
                yield unique, name, updates

    def read(self) -> dict[str, Any]:
        return {
            key: _left_out(updates.true(name, updates.rounded[name]), updates.rounded[name])
            for key, name, updates in self._named() if name in updates.rests
        }  # fmt: skip

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(updates.rounded[name].shape) for key, name, updates in self._named()}

    def write(self, compensation: Mapping[str, Any], steps: Sequence[int]) -> None:
        for key, name, updates in self._named():
            if name in updates.rests:
                rest = updates.rests[name]
                rest.assign(tf.cast(compensation.get(key, np.zeros(rest.shape, np.float32)), tf.bfloat16))
        for updates, count in zip(self._all(), steps, strict=True):
            updates.count.assign(count)


def _left_out(true: Tensor, variable: Variable) -> Any:
    difference: Tensor = true - tf.cast(variable, tf.float32)
    return np.nan_to_num(difference.numpy(), nan=0.0, posinf=0.0, neginf=0.0)
