"""What one eager step, or one trace, records before it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from .._types import Graph, Tensor
from .sketches import TraceSketches


class LayerRecord(NamedTuple):
    """One activation, without its values."""

    layer: str
    kind: str
    place: str
    dtype: str
    which: int
    replica: int
    function: str = ""


class TraceRecord:
    """What one eager step, or one trace, records: what it saw, and the tensors that hold the numbers.

    Attributes:
        home: the graph of its tensors; None for eager.
        activations: what was seen, each pointing into ``largest``.
        names: of the gradients, as ``counts`` holds them, and whose they are: the replica's index.
        largest: per tensor seen, its largest absolute value in float32: inf or nan where it held such a value.
        counts: per gradient, int32 of shape (2, buckets): scaled and true.
        scalars: "scale", and for each replica "loss" and its index.
        layers, gradients: sketches of what ``largest`` and ``counts`` are of, where runs are to be compared.
        summed: the names of gradients after the sum over replicas, and their sketches; of several replicas alone.
    """

    def __init__(self, home: Graph | None) -> None:
        self.home = home
        self.activations: list[LayerRecord] = []
        self.names: list[tuple[str, int]] = []
        self.largest: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.scalars: dict[str, Any] = {}
        self.layers, self.gradients = TraceSketches("layers", batch=True), TraceSketches("gradients", batch=False)
        self.summed: tuple[list[str], TraceSketches] = ([], TraceSketches("sums", batch=False))
        self.known: dict[int, tuple[Callable[[], Any], int]] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers as few tensors, to be read or returned from a trace."""
        found: dict[str, Tensor] = dict(self.scalars)
        if self.largest:
            found["largest"] = tf.stack(self.largest)
        if self.counts:
            found["counts"] = tf.stack(self.counts)
        return {**found, **self.layers.tensors(), **self.gradients.tensors(), **self.summed[1].tensors()}

    def release_tensors(self) -> dict[str, Tensor]:
        """Return :meth:`tensors`, and drop them here with their graph."""
        found = self.tensors()
        self.home, self.largest, self.counts, self.scalars = None, [], [], dict.fromkeys(self.scalars)
        self.layers.release()
        self.gradients.release()
        self.summed[1].release()
        self.known.clear()
        return found
