"""Steps in the user's ``tf.function(jit_compile=True)``. XLA cannot call Python, so a variable records them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from .. import patches
from .._types import Tensor

KEPT = 4096
"""Steps whose values are kept; a longer call keeps its last ones."""
VALUES = 64
"""Values kept per step."""


class XlaSteps:
    """Records these steps and reports them after each function call, which synchronizes. For measured runs only.

    Attributes:
        stop: a function that ends the reports.
    """

    def __init__(self) -> None:
        # Made before anything is traced: a trace after a function's first one may create no variable.
        # A row for each step: which trace, and its values.
        self._rows = tf.Variable(tf.zeros([KEPT, 1 + VALUES]), trainable=False, name="unifiedamp/steps_under_xla")
        self._count = tf.Variable(0, trainable=False, dtype=tf.int64, name="unifiedamp/count_under_xla")
        self._traces: list[tuple[Callable[..., None], int]] = []
        self._seen = 0
        self.stop = patches.after_functions(self._report)

    def note(self, fn: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        """Add a step to the current trace; see ``Training.call_from_trace``."""
        means = [tf.reduce_mean(tf.cast(tensor, tf.float32)) for tensor in tensors[:VALUES]]
        row = tf.stack([float(len(self._traces)), *means, *[math.nan] * (VALUES - len(means))])
        self._rows.scatter_nd_update([[self._count.read_value() % KEPT]], [row])
        self._count.assign_add(1)
        self._traces.append((fn, len(tensors)))

    def _report(self) -> None:
        """Report the steps since the last report; synchronizes."""
        if not self._traces:
            return
        first, self._seen = self._seen, int(self._count.numpy())
        if first == self._seen:
            return
        rows = self._rows.numpy()
        for step in range(first, self._seen):
            # Of a step that is no longer kept, the trace is that of the oldest one that is.
            kept = max(step, self._seen - KEPT)
            trace, *values = rows[kept % KEPT].tolist()
            fn, count = self._traces[int(trace)]
            values = values if kept == step else [math.nan] * VALUES
            fn(*(values + [math.nan] * count)[:count], more=step + 1 < self._seen)
