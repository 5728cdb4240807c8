"""The role that keeps the histories of delayed float8 scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..formats import FLOAT_FORMATS
from .required import required

OPERANDS = {"input": "float8_e4m3fn", "weight": "float8_e4m3fn", "gradient": "float8_e5m2"}
"""Operand of a layer → its format, in the order of the rows of a history."""


def operand_limits(margin: int) -> list[float]:
    """Return the largest number that each operand is scaled to.

    Args:
        margin: powers of two that are left below the format's maximum.
    """
    return [FLOAT_FORMATS[format].max * 2.0**-margin for format in OPERANDS.values()]


class AmaxHistory:
    """Scales float8 operands by the largest magnitudes of earlier steps, recipe "delayed": feature ``amax_history``.

    A history holds, for each float8 layer, the largest magnitudes of its inputs, its weight and its output's gradients
    in the last ``Policy.amax_history`` iterations. An iteration enters it once, with the largest over its
    micro-batches; one in which a step was skipped does not, nor does a magnitude that is inf or nan.
    """

    means: str = ""

    @required
    def read(self) -> dict[str, Any]:
        """Return layer → its history, a float32 numpy array of shape (3, iterations), the newest iteration first; rows
        for inputs, weight and gradients. May synchronize.
        """

    @required
    def write(self, histories: Mapping[str, Any]) -> None:
        """Set what :meth:`read` returned; layers that are left out start without a history."""

    @required
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return layer → the inputs and outputs of its weight; layers are left out while these are not known."""
