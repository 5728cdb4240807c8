"""The role that counts the values of matrix products for ``amp.forecast``: feature ``forecast``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .required import required
from .roles import Optimizer

SHIFT = 20
"""A value is counted by the upper bits of its magnitude as a float32: ``bits(|value|) >> SHIFT`` is its exponent and
three bits of its fraction."""

PLACES = 1 << (31 - SHIFT)
"""Counts per tensor. The first place holds zeros and what is below 2**-129."""

NON_FINITE = 0x7F800000 >> SHIFT
"""The first place of infinite values and nan."""

OPERANDS = ("weight", "input", "gradient")
"""Tensors that are multiplied: the layer's weight, its input, and the gradient of its output."""

RESULTS = ("output", "weight_gradient")
"""Tensors that come out: the layer's output and the gradient of its weight."""


@dataclass(frozen=True)
class TensorCounts:
    """The values of one tensor in one step; of a layer that ran several times, those of all runs.

    Attributes:
        counts: a numpy array of :data:`PLACES` whole numbers.
        largest: the largest absolute value, inf or nan where there was such a value.
    """

    counts: Any
    largest: float


@dataclass(frozen=True)
class ProductCounts:
    """One layer that multiplies matrices or convolves, in one step.

    Attributes:
        layer: the layer's path, as ``layer_overrides`` names it; "" for the model itself.
        kind: the layer's class.
        work: multiplications of its forward pass.
        float8: why the backend would not run it in float8 under ``mixed_float8``; empty where it would.
        tensors: name of :data:`OPERANDS` or :data:`RESULTS` → its counts; true gradients, without the loss scale.
    """

    layer: str
    kind: str
    work: int
    float8: str
    tensors: Mapping[str, TensorCounts]


class Forecaster:
    """Counts the values that go into matrix products and come out of them: feature ``forecast``."""

    means: str = ""

    @required
    def begin(self) -> None:
        """Count the steps from here to :meth:`end`, on the device; nothing may be left that costs time afterwards.

        Inference regions do not count.
        """

    def note_gradients(self, optimizer: Optimizer) -> None:
        """Note that the gradients of a window are complete and still raw, for a backend that reads them here."""

    @required
    def end(self) -> Sequence[ProductCounts]:
        """Stop counting; return what was counted, in the order in which the layers ran first."""
