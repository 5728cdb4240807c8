"""The role that updates bfloat16 parameters without float32 master weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .required import required


class WeightUpdates:
    """Updates bfloat16 parameters without float32 master weights, by ``Policy.update``: feature ``weight_updates``.

    At each applied step the framework's own optimizer updates float32 values, which are then rounded; between steps no
    float32 copy of the parameters is kept. ``stochastic`` rounds by ``rounding.noise``; ``kahan`` as
    ``rounding.kahan_split`` does. The true weights, which ``Weights`` reads and writes and averages follow, are a
    parameter plus its compensation. A step that is not applied changes neither, nor the random numbers.
    """

    means: str = ""

    @required
    def steps(self) -> list[int]:
        """Return how many updates were rounded, for each optimizer in order of ``prepare``; may synchronize."""

    @required
    def read(self) -> dict[str, Any]:
        """Return name of a parameter → its compensation, a float32 numpy array; none where nothing is compensated."""

    @required
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the parameters whose updates are rounded."""

    @required
    def write(self, compensation: Mapping[str, Any], steps: Sequence[int]) -> None:
        """Set what :meth:`read` and :meth:`steps` returned; names that are left out get zeros."""
