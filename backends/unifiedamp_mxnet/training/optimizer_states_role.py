"""The role that keeps moments in fewer bits: what a session reads and sets of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import OptimizerStates

from .prepared_optimizers import PreparedOptimizers


class MXNetOptimizerStates(OptimizerStates):
    """Moments in the updater's states, made float32 while the updater runs.

    Args:
        optimizers: the session's Trainers.
    """

    means = "the updater's states as bits on the host between steps, rounded in numpy"
    dtypes = ("bfloat16", "float8")

    def __init__(self, optimizers: PreparedOptimizers) -> None:
        self._optimizers = optimizers

    def steps(self) -> list[int]:
        return [weights.steps for _, weights in self._optimizers.rounded()]

    def set_steps(self, steps: Sequence[int]) -> None:
        for (_, weights), count in zip(self._optimizers.rounded(), steps, strict=True):
            weights.steps = count

    def read(self) -> list[dict[str, Any]]:
        for _, weights in self._optimizers.rounded():
            weights.moments.check_known()
        return [
            {
                f"{prepared.buffer.name(index)}/{moment}": np.array(kept.asnumpy())
                for index, moment, kept in weights.moments.all()
            }
            for prepared, weights in self._optimizers.rounded()
        ]

    def applied(self) -> list[int]:
        return [weights.moments.applied() for _, weights in self._optimizers.rounded()]

    def write(self, moments: Sequence[Mapping[str, Any]], applied: Sequence[int]) -> None:
        for (_, weights), given, count in zip(self._optimizers.rounded(), moments, applied, strict=True):
            weights.moments.write(given, count)

    def nbytes(self) -> int:
        kept = [each for _, weights in self._optimizers.rounded() for _, _, each in weights.moments.all()]
        return sum(getattr(each, "nbytes", None) or 4 * int(np.prod(each.shape)) for each in kept)
