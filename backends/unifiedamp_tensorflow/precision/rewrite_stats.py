"""What the graph rewrite did, counted in the converted graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from .._types import Node, Tensor
from ..internals import collect_graphs

LOW = {"float16": tf.float16.as_datatype_enum, "bfloat16": tf.bfloat16.as_datatype_enum}
MOVES = ("Cast", "Const", "Identity", "_Arg", "_Retval", "ReadVariableOp", "NoOp", "VarHandleOp", "Reshape", "Shape")


@dataclass
class RewriteStats:
    """Counts over converted graphs.

    Attributes:
        dtype: the low-precision dtype looked for.
        low: operation → how many of its nodes compute in ``dtype``.
        total: nodes that compute in any floating dtype.
        casts: casts to ``dtype``.
    """

    dtype: str
    low: Counter[str] = field(default_factory=Counter)
    total: int = 0
    casts: int = 0

    def __bool__(self) -> bool:
        return bool(self.low)

    def __str__(self) -> str:
        if not self:
            return f"no node of {self.total} computes in {self.dtype}"
        ops = ", ".join(f"{op}×{count}" for op, count in self.low.most_common(6))
        return f"{self.low.total()} of {self.total} nodes compute in {self.dtype} ({ops}), {self.casts} casts to it"

    def add(self, graphs: Iterable[Any]) -> RewriteStats:
        """Count the nodes of ``graphs`` (GraphDefs) and their functions."""
        for graph in graphs:
            for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
                for node in nodes:
                    self._count(node)
        return self

    def _count(self, node: Node) -> None:
        low = LOW[self.dtype]
        if node.op == "Cast":
            self.casts += node.attr["DstT"].type == low
            return
        kind = node.attr["T"].type if "T" in node.attr else 0
        if node.op in MOVES or not kind or not tf.as_dtype(kind).is_floating:
            return
        self.total += 1
        if kind == low:
            self.low[node.op] += 1


def rewrite_small_graph(dtype: str, around: Callable[[], AbstractContextManager[Any]]) -> RewriteStats | None:
    """Convert a small step (two matrix products, ReLU, softmax, gradients) and count; None where graphs cannot be read.

    Args:
        dtype: the low-precision dtype.
        around: makes the context in which graphs are converted.
    """
    graphs = collect_graphs()
    if graphs is None:
        return None
    weight = tf.Variable(tf.ones((32, 32)), trainable=False)

    def step(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = tf.reduce_sum(tf.nn.softmax(tf.nn.relu(x @ weight) @ weight))
        return tape.gradient(loss, weight)

    function = tf.function(step, autograph=False)
    with around(), graphs as found:
        function(tf.ones((8, 32)))
    return RewriteStats(dtype).add(found)
