"""The role that keeps moments in fewer bits: what a session reads and sets of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import OptimizerStates, converted, errors

from .moments import NAMES, Moment, is_known
from .prepared_objects import PreparedObjects
from .weight_updates import WeightUpdates


class TensorFlowOptimizerStates(OptimizerStates):
    """Moments in the optimizer's variables, which ``update_step`` sees as float32 values.

    Args:
        prepared: the session's objects.
    """

    means = (
        "the optimizer's variables in bfloat16, or as bytes: float8 numbers and the scales of blocks of 256; float32 "
        "values in their place in optimizer.update_step"
    )
    dtypes = ("bfloat16", "float8")

    def __init__(self, prepared: PreparedObjects) -> None:
        self._prepared = prepared

    def _all(self) -> list[WeightUpdates]:
        return [each.params.updates for each in self._prepared.optimizers if each.params.updates is not None]

    def steps(self) -> list[int]:
        return [int(updates.count.value()) for updates in self._all()]

    def set_steps(self, steps: Sequence[int]) -> None:
        for updates, count in zip(self._all(), steps, strict=True):
            updates.count.assign(count)

    def read(self) -> list[dict[str, Any]]:
        unknown = [each.optimizer for each in self._all() if not is_known(each.optimizer)]
        if unknown:
            raise errors.UnsupportedError(
                f"the moments of this {type(unknown[0]).__name__} are not known; those of tf.keras.optimizers' "
                f"{', '.join(NAMES)} are"
            )
        return [{name: each.read().numpy() for name, each in _named(updates)} for updates in self._all()]

    def applied(self) -> list[int]:
        return [int(updates.optimizer.iterations.numpy()) for updates in self._all()]

    def write(self, moments: Sequence[Mapping[str, Any]], applied: Sequence[int]) -> None:
        owners = [each for each in self._prepared.optimizers if each.params.updates is not None]
        for prepared, updates, given, count in zip(owners, self._all(), moments, applied, strict=True):
            rate = float(tf.convert_to_tensor(updates.optimizer.learning_rate))
            for param, kept in updates.moments.kept.items():
                name = updates.saved[param]
                for each in kept:
                    array = converted(given, name, each.moment, rate)
                    if array is not None:
                        each.write(tf.constant(np.asarray(array, np.float32)), name, updates.next_step)
            prepared.steps_before += count - int(updates.optimizer.iterations.numpy())  # it applied none of these here
            updates.optimizer.iterations.assign(count)

    def nbytes(self) -> int:
        kept = [each.variable for updates in self._all() for _, each in _named(updates)]
        return sum(variable.dtype.size * int(np.prod(variable.shape)) for variable in kept)


def _named(updates: WeightUpdates) -> Iterator[tuple[str, Moment]]:
    for name, moments in updates.moments.kept.items():
        for each in moments:
            yield f"{updates.saved[name]}/{each.moment}", each
