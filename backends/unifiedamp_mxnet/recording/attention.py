"""Where attention runs while a step is counted: the operands, results and gradients of its two products.

Gluon has no layer of attention. It is made of two ``batch_dot`` in one block: of queries and keys, then of what softmax
makes of their result, which has its shape, and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from unifiedamp.backend import ProductCounts, TensorCounts, forecast

from .._types import Array, Block, Undo
from ..device.arrays import is_array
from ..mxnet_api import autograd, dtype_name, mx
from ..patches import patched
from .product_counts import WatchedArray
from .step_recorder import FLOATS

MODULES: list[Any] = [module for module in (mx.nd, getattr(mx, "npx", None)) if hasattr(module, "batch_dot")]
"""Where models find ``batch_dot``."""


class CountedAttention:
    """The attention of one block in one step.

    Args:
        path, block: the block's.

    Attributes:
        work: multiplications so far.
    """

    def __init__(self, path: str, block: Block) -> None:
        self._path, self.block = path, block
        self.work = 0
        self._tensors: dict[str, TensorCounts] = {}

    def weight(self) -> None:
        """Return None: no parameter is multiplied."""

    def add(self, name: str, found: TensorCounts) -> None:
        """Add the counts of a tensor."""
        before = self._tensors.get(name)
        self._tensors[name] = found if before is None else before.plus(found)

    def read(self) -> ProductCounts:
        """Return what was counted."""
        kind, inside = type(self.block).__name__, bool(self.block._children)
        return ProductCounts(self._path, kind, self.work, forecast.NO_FLOAT8_ATTENTION, self._tensors, inside)


class Scores(NamedTuple):
    """The first of two products, which may be one of queries and keys.

    Attributes:
        shape: of its result.
        operands: as they were given.
        watched: its operands, whose gradients can be read.
    """

    shape: tuple[int, ...]
    operands: tuple[Array, Array]
    watched: tuple[WatchedArray, WatchedArray]


class AttentionCounter:
    """Counts pairs of ``batch_dot``, by the innermost block that runs.

    Args:
        layer: returns the counts of a block.
        count: counts an array as a tensor of this name.
        watch: has the gradient of an array counted as a tensor of this name.
    """

    def __init__(
        self,
        layer: Callable[[str, Block], CountedAttention],
        count: Callable[[CountedAttention, str, Array], None],
        watch: Callable[[CountedAttention, str, WatchedArray], None],
    ) -> None:
        self._layer, self._count, self._watch = layer, count, watch
        self._running: list[tuple[str, Block]] = []
        self._scores: list[Scores | None] = []
        self._undo: list[Undo] = [
            patched(module, batch_dot=self._counting(module.batch_dot)).undo for module in MODULES
        ]

    def follow(self, path: str, block: Block) -> None:
        """Know when a block runs."""
        native: Callable[..., Any] = block.forward  # type: ignore[attr-defined]  # of every block

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._running.append((path, block))
            self._scores.append(None)
            try:
                return native(*args, **kwargs)
            finally:
                self._running.pop()
                self._scores.pop()

        self._undo.append(patched(block, forward=forward).undo)

    def stop(self) -> None:
        """Count no more."""
        while self._undo:
            self._undo.pop()()

    def _counting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def batch_dot(lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
            counts = self._running and autograd.is_recording() and all(map(_is_counted, (lhs, rhs)))
            if not counts:
                return native(lhs, rhs, *args, **kwargs)
            watched = WatchedArray(lhs), WatchedArray(rhs)
            output = native(watched[0].sum, watched[1].sum, *args, **kwargs)
            before = self._scores[-1]
            if before is None or lhs.shape != before.shape:
                self._scores[-1] = Scores(output.shape, (lhs, rhs), watched)
                return output
            self._scores[-1] = None
            return self._attended(before, rhs, watched[1], output)

        return batch_dot

    def _attended(self, scores: Scores, value: Array, watched: WatchedArray, output: Array) -> Array:
        """Count both products; return what stands for the output."""
        layer = self._layer(*self._running[-1])
        layer.work += (scores.operands[0].size + output.size) * scores.shape[2]
        operands = (*scores.operands, value)
        for name, array, kept in zip(forecast.ATTENTION, operands, (*scores.watched, watched), strict=True):
            self._count(layer, name, array)
            self._watch(layer, f"{name}_gradient", kept)
        self._count(layer, "output", output)
        result = WatchedArray(output)
        self._watch(layer, "gradient", result)
        return result.sum


def _is_counted(array: Any) -> bool:
    return is_array(array) and dtype_name(array) in FLOATS and len(array.shape) == 3 and bool(array.size)
