"""The role that counts the values of matrix products for ``amp.forecast``: feature ``forecast``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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

ATTENTION = ("query", "key", "value")
"""Operands of the two products of attention, which has no weight, beside the gradient of its output."""

ATTENTION_GRADIENTS = tuple([f"{name}_gradient" for name in ATTENTION])
"""What comes out of their backward pass."""

GRADIENTS = ("gradient", "weight_gradient", *ATTENTION_GRADIENTS)
"""Tensors that a loss scale multiplies."""

ALL_TENSORS = (*OPERANDS, *ATTENTION, *RESULTS, *ATTENTION_GRADIENTS)

NO_FLOAT8_ATTENTION = "attention is not"
"""``ProductCounts.float8`` of attention."""


SCALINGS = {
    "row": "a power of two for each row, by which its largest magnitude becomes at most 448",
    "block128": "the same for 1 x 128 values of a row; for 128 x 128 values of a weight",
    "block32": "for 32 values of a row, a power of two by which their largest magnitude becomes 1 to 2",
    "block16": "the inverse of NVFP4's two scales: E4M3 for 16 values of a row, and float32 for the tensor",
}
"""What the values of a matrix may be multiplied by before they are counted; ``rounding.scale_values`` is the reference.

Matrices have shape (m, k): a weight (outputs, inputs), an input (…, inputs), the gradient of an output (…, outputs). So
scales lie along the dimension that the first product sums over that the tensor enters.
"""


@dataclass(frozen=True)
class TensorCounts:
    """The values of one tensor in one step; of a layer that ran several times, those of all runs.

    Attributes:
        counts: a numpy array of :data:`PLACES` whole numbers.
        largest: the largest absolute value, inf or nan where there was such a value.
        scaled: name of :data:`SCALINGS` → the same of the scaled values, where they were asked for.
    """

    counts: Any
    largest: float
    scaled: Mapping[str, TensorCounts] = field(default_factory=dict)

    def plus(self, other: TensorCounts) -> TensorCounts:
        """Return the counts of both."""
        larger = other.largest if other.largest > self.largest or math.isnan(other.largest) else self.largest
        both = {name: each.plus(other.scaled[name]) for name, each in self.scaled.items()}
        return TensorCounts(self.counts + other.counts, larger, both)


def by_tensor(counts: Mapping[tuple[str, str], TensorCounts]) -> dict[str, TensorCounts]:
    """Return name → counts with those of its scaled values, given (name, scaling or "") → counts."""
    scaled: dict[str, dict[str, TensorCounts]] = {}
    for (name, scaling), found in counts.items():
        if scaling:
            scaled.setdefault(name, {})[scaling] = found
    plain = {name: found for (name, scaling), found in counts.items() if not scaling}
    return {name: replace(found, scaled=scaled[name]) if name in scaled else found for name, found in plain.items()}


@dataclass(frozen=True)
class ProductCounts:
    """One layer that multiplies matrices or convolves, or the attention that runs in one layer, in one step.

    Attributes:
        layer: the layer's path, as ``layer_overrides`` names it; "" for the model itself.
        kind: the layer's class.
        work: multiplications of its forward pass.
        float8: why the backend would not run it in float8 under ``mixed_float8``; empty where it would.
        tensors: name of :data:`ALL_TENSORS` → its counts; true gradients, without the loss scale.
        holds_layers: of attention: there are layers inside, which make its operands, and so have its format.
    """

    layer: str
    kind: str
    work: int
    float8: str
    tensors: Mapping[str, TensorCounts]
    holds_layers: bool = False


class Forecaster:
    """Counts the values that go into matrix products and come out of them: feature ``forecast``."""

    means: str = ""

    scalings: Sequence[str] = ()
    """Names of :data:`SCALINGS` that the backend counts, for the operands of linear layers."""

    @required
    def begin(self, scalings: Sequence[str] = ()) -> None:
        """Count the steps from here to :meth:`end`, on the device; nothing may be left that costs time afterwards.

        Inference regions do not count.

        Args:
            scalings: those of :attr:`scalings` that are counted too; a backend that has none is called without.
        """

    def note_gradients(self, optimizer: Optimizer) -> None:
        """Note that the gradients of a window are complete and still raw, for a backend that reads them here."""

    @required
    def end(self) -> Sequence[ProductCounts]:
        """Stop counting; return what was counted, in the order in which the layers ran first."""
