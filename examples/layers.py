"""What parity compares of the image classifiers: each layer's part of a step, in the order of computation.

Weights and momentum before and after a step are the same in every framework, so the order is: the mean of the input of
each batch norm (the output of the convolution before it), the loss, and the gradients from the last layer to the first.
A fault in one layer therefore appears there first, and then in all layers that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unifiedamp.workloads import ParityValue, Snapshot
from unifiedamp.workloads.compare.trace import FLOAT32, STORED, stored

from .models.neutral import NORM_KEEP, conv_kernels, dense_sizes


@dataclass(frozen=True)
class Layers:
    """A model's layers.

    Attributes:
        model: "conv", "mlp" or "resnet50".
        shape: of an image, (height, width, channels).
        classes: outputs.
        batch_size: images per batch.
        size: further arguments of ``make_model``.
    """

    model: str
    shape: Sequence[int]
    classes: int
    batch_size: int
    size: dict[str, int]

    def values(self, before: Snapshot, after: Snapshot, momentum: float) -> Iterator[ParityValue]:
        """Yield the values of a step."""
        order, terms = self.order, self.terms
        yield from _means(order, terms, before.weights, after.weights)
        yield ParityValue("loss", "loss", np.array([after.loss]), sum(map(_roundings, order)), terms)
        yield from _gradients(order, terms, before, after, momentum)

    @property
    def order(self) -> list[str]:
        """The convolutions and dense layers in forward order."""
        convs = [f"conv{i + 1}" for i in range(len(self._convs))]
        return convs + [f"dense{i + 1}" for i in range(len(self._dense))]

    @property
    def terms(self) -> int:
        """The maximum number of terms in a sum: inputs of a layer, or pixels of a batch in a gradient."""
        height, width, _ = self.shape
        pixels = self.batch_size * (height * width if self._convs else 1)
        inputs = [rows * columns * channels for rows, columns, channels, _ in self._convs]
        return max(pixels, *inputs, *(count for count, _ in self._dense))

    @property
    def _convs(self) -> list[tuple[int, int, int, int]]:
        return conv_kernels(self.model, self.shape, **self.size)

    @property
    def _dense(self) -> list[tuple[int, int]]:
        return dense_sizes(self.model, self.shape, self.classes, **self.size)


def _roundings(layer: str) -> int:
    """Return the roundings of a layer and its followers: convolution, norm, pooling; product, bias. ReLU is exact."""
    return 3 if layer.startswith("conv") else 2


def _means(order: Sequence[str], terms: int, before: Any, after: Any) -> Iterator[ParityValue]:
    for place, layer in enumerate(order):
        depth = sum(map(_roundings, order[:place])) + 1
        norm = layer.replace("conv", "norm")
        if f"{norm}/mean" not in after or not layer.startswith("conv"):
            continue
        mean, variance = (_of_batch(before[f"{norm}/{key}"], after[f"{norm}/{key}"]) for key in ("mean", "variance"))
        scale = float(np.sqrt(np.sum(mean**2 + np.maximum(variance, 0.0))))
        floor = STORED * FLOAT32 * float(np.linalg.norm(after[f"{norm}/mean"])) / (1 - NORM_KEEP) / max(scale, 1e-30)
        yield ParityValue(layer, "mean output", mean, depth, terms, floor, scale)


def _of_batch(before: Any, after: Any) -> Any:
    """Return the batch statistic from a running average before and after the step."""
    return (after.astype(np.float64) - NORM_KEEP * before.astype(np.float64)) / (1 - NORM_KEEP)


def _gradients(
    order: Sequence[str], terms: int, before: Snapshot, after: Snapshot, momentum: float
) -> Iterator[ParityValue]:
    """Yield gradients recovered from the momentum; without momentum, the weight updates."""
    earlier, later = (before.optimizer, after.optimizer) if momentum else (before.weights, after.weights)
    keep, what = (momentum, "gradient") if momentum else (1.0, "update")
    for place, layer in reversed(list(enumerate(order))):
        depth = sum(map(_roundings, [*order, *order[place:]]))
        for name in [name for name in later if name.split("/")[0] in (layer, layer.replace("conv", "norm"))]:
            if name.endswith(("/mean", "/variance")):
                continue
            value = later[name].astype(np.float64) - keep * earlier[name].astype(np.float64)
            yield ParityValue(name.replace("/", "."), what, value, depth, terms, stored(later[name], value))
