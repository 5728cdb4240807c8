"""Gradients in few tensors, where XLA compiles what comes before and after their sum.

A program hands over each of its results by itself, which takes the host longer than the sum of a small gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .._types import Gradient


class Packed:
    """Gradients, with the dense ones of one dtype joined.

    Args:
        gradients: of one replica.

    Attributes:
        tensors: one for each dtype of dense gradients whose shapes are known, and the other gradients.
    """

    def __init__(self, gradients: Sequence[Gradient]) -> None:
        self._joined: dict[Any, dict[int, Any]] = {}  # dtype → place in ``gradients`` → shape
        self._alone = []
        for place, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
                self._alone.append(place)
            else:
                self._joined.setdefault(gradient.dtype, {})[place] = gradient.shape
        joined = [
            tf.concat([tf.reshape(gradients[place], [-1]) for place in each], 0) for each in self._joined.values()
        ]
        self.tensors: list[Gradient] = [*joined, *(gradients[place] for place in self._alone)]
        self._parts: list[Gradient] = []

    def parts(self) -> list[Gradient]:
        """Return what stands for each gradient in the present graph."""
        self._parts = self.unpacked(self.tensors)
        return self._parts

    def holds(self, parts: Sequence[Gradient]) -> bool:
        """Whether all of these are among what :meth:`parts` returned last."""
        known = {id(part) for part in self._parts}
        return all(id(part) in known for part in parts)

    def like(self, parts: Sequence[Gradient], tensors: Sequence[Gradient]) -> list[Gradient]:
        """Return what stands for the same gradients as ``parts`` in tensors like ``self.tensors``."""
        places = {id(part): place for place, part in enumerate(self._parts)}
        found = self.unpacked(tensors)
        return [found[places[id(part)]] for part in parts]

    def unpacked(self, tensors: Sequence[Gradient]) -> list[Gradient]:
        """Return what stands for each gradient in tensors like ``self.tensors``, such as their sums."""
        found = dict(zip(self._alone, tensors[len(self._joined) :], strict=True))
        for shapes, tensor in zip(self._joined.values(), tensors, strict=False):
            parts = tf.split(tensor, [shape.num_elements() for shape in shapes.values()])
            for (place, shape), part in zip(shapes.items(), parts, strict=True):
                found[place] = tf.reshape(part, shape)
        return [found[place] for place in sorted(found)]
