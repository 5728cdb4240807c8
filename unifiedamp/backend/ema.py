"""The role that keeps exponential moving averages of weights, and by how much each applied step moves one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .required import required
from .roles import Model

WARMUP_OFFSET = 10.0
"""The constant of the warm-up."""


def ema_weight(decay: float, warmup: bool, n: int) -> float:
    """Return ``1 - d``, by which the ``n``-th applied step moves an average: ``average += (1 - d) * (w - average)``.

    Args:
        decay: d, at least 0 and below 1.
        warmup: d is ``min(decay, (1 + n) / (10 + n))``, as in TensorFlow's ``ExponentialMovingAverage(num_updates)``:
            the average forgets its beginning fast. With ``n`` counting this step it is 2/11 at the first one.
        n: applied steps, this one included.
    """
    if not warmup:
        return 1.0 - decay
    return max(1.0 - decay, (WARMUP_OFFSET - 1.0) / (WARMUP_OFFSET + n))


class WeightAverage(Protocol):
    """An exponential moving average of one model's trained weights, in float32 (complex64 for complex ones).

    Weights that no optimizer trains and buffers (statistics of normalization, counters) are not averaged.
    """

    def updates(self) -> list[int]:
        """Return how many applied steps have moved it, for each optimizer that trains the model, in order of
        ``prepare``; may synchronize.
        """

    def read(self) -> dict[str, Any]:
        """Return name → float32 numpy array, by the names of ``Weights.read``; the model's weights as long as no step
        was applied and nothing was written. The averages also while they are swapped in.
        """

    def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
        """Set what :meth:`read` and :meth:`updates` returned; compiled steps move what was set, also where
        no step was applied before.
        """

    def restart(self) -> None:
        """Start anew, from the model's weights before the next applied step."""

    def swap_in(self) -> None:
        """Keep the model's true weights aside, and set the model's weights (masters included) to the averages."""

    def swap_out(self) -> None:
        """Restore what :meth:`swap_in` kept, bit for bit; also after one that was interrupted. Idempotent."""

    def stop(self) -> None:
        """Stop moving; what there is can still be read."""


class Averaging:
    """Keeps exponential moving averages of models' weights: feature ``ema``."""

    means: str = ""

    @required
    def start(self, model: Model, decay: float, warmup: bool) -> WeightAverage:
        """Return an average that moves inside each applied step of an optimizer that trains the model, on the device
        and without synchronizing, also in compiled steps and in steps of the framework's own loops.

        The n-th applied step moves it by ``average += (1 - d) * (weight - average)``, from the weights (master weights
        where there are some) before the first. Steps that are skipped, discarded or accumulate leave it bit for bit.

        Args:
            model: a prepared model.
            decay: d, at least 0 and below 1.
            warmup: d is ``min(decay, (1 + n) / (10 + n))``.

        Raises:
            PrepareError: no optimizer of the session trains the model.
        """
