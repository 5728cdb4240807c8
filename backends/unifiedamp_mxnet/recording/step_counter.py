"""What is counted of a step for a forecast: the operands and results of layers' products.

While a step is counted, layers have a ``forward`` that counts, and hybridized blocks run imperatively.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from unifiedamp.backend import Float8Recipe, ProductCounts, TensorCounts, forecast

from .._types import Array, Block, Parameter, Undo
from ..device.arrays import is_array
from ..layer_paths import is_symbol_block, walk
from ..mxnet_api import autograd, context_of, dtype_name, gluon
from ..patches import patched
from ..precision.float8_layers import rejection_reason
from ..training.gradients import GradientBuffer
from ..training.multi_tensor import dense
from .attention import AttentionCounter, CountedAttention
from .product_counts import WatchedArray, counted
from .reductions import HostBuffer
from .step_recorder import FLOATS

CONVS = (gluon.nn.Conv2D.__mro__[1],)
COUNTED = (gluon.nn.Dense, *CONVS)


class CountedLayer:
    """A layer in one step.

    Args:
        path: the layer's.
        block: the layer.

    Attributes:
        block: the layer.
        work: multiplications so far.
    """

    def __init__(self, path: str, block: Block) -> None:
        self._path, self.block = path, block
        self.work = 0
        self._tensors: dict[str, TensorCounts] = {}

    def weight(self) -> Parameter:
        """Return the parameter that is multiplied."""
        return self.block.weight  # type: ignore[no-any-return, attr-defined]  # of every layer in COUNTED

    def add(self, name: str, found: TensorCounts) -> None:
        """Add the counts of a tensor."""
        before = self._tensors.get(name)
        self._tensors[name] = found if before is None else before.plus(found)

    def add_work(self, inputs: Array, output: Array) -> None:
        """Add the multiplications of a forward pass."""
        block: Any = self.block
        shape = self.weight().shape
        if isinstance(block, gluon.nn.Dense):
            self.work += inputs.size * shape[0]
        else:
            transposed = block._op_name.lower() == "deconvolution"  # its kernel is applied at each value of the input
            self.work += (inputs if transposed else output).size * math.prod(shape[1:])

    def read(self) -> ProductCounts:
        """Return what was counted."""
        dense_layer = isinstance(self.block, gluon.nn.Dense)
        why = rejection_reason(self.block, None, Float8Recipe().multiple) if dense_layer else "only dense layers are"
        return ProductCounts(self._path, type(self.block).__name__, self.work, why, self._tensors)


class StepCounter:
    """Counts from its making to :meth:`stop`.

    Args:
        models: the prepared models.
        scalings: those of ``SCALINGS`` that are counted, in dense layers.
    """

    def __init__(self, models: Sequence[Block], scalings: Sequence[str] = ()) -> None:
        self._scalings = scalings
        self._ran: list[CountedLayer | CountedAttention] = []
        self._watched: list[tuple[CountedLayer | CountedAttention, str, WatchedArray]] = []
        self._attentions: dict[str, CountedAttention] = {}
        self._attention = AttentionCounter(self._attention_of, self._add, self._watch)
        self._undo: list[Undo] = [self._attention.stop]
        self._buffer = HostBuffer()
        known: set[int] = set()
        for index, model in enumerate(models):
            for path, block in walk(model):
                if id(block) not in known:
                    known.add(id(block))
                    self._attach(path if not index else f"model{index}.{path}".rstrip("."), block)

    def _attach(self, path: str, block: Block) -> None:
        if isinstance(block, COUNTED):
            layer = CountedLayer(path, block)
            self._undo.append(patched(block, forward=functools.partial(self._called, layer, block.forward)).undo)
        elif not is_symbol_block(block):
            self._attention.follow(path, block)
        if vars(block).get("_active") and not is_symbol_block(block):
            # Not by hybridize(False), which would throw the traced graphs away.
            self._undo.append(patched(block, _active=False).undo)

    def stop(self) -> None:
        """Restore the layers."""
        while self._undo:
            self._undo.pop()()
        self._watched.clear()

    def _called(self, layer: CountedLayer, forward: Callable[..., Any], inputs: Any, *args: Any) -> Any:
        """Run a layer's ``forward``, and count; its own activation comes after its output and gradient."""
        if not autograd.is_recording() or not is_array(inputs) or dtype_name(inputs) not in FLOATS or not inputs.size:
            return forward(inputs, *args)
        block: Any = layer.block
        act: Any = getattr(block, "act", None)
        if act is None:
            return self._count(layer, inputs, forward(inputs, *args))
        native = act.forward
        patch = patched(act, forward=lambda output: native(self._count(layer, inputs, output)))
        try:
            return forward(inputs, *args)
        finally:
            patch.undo()

    def _count(self, layer: CountedLayer, inputs: Array, output: Array) -> Array:
        """Count a forward pass; return what stands for the output. MXNet 1 infers shapes by a pass of symbols."""
        if not is_array(output):
            return output
        if layer not in self._ran:
            self._ran.append(layer)
        layer.add_work(inputs, output)
        arrays = {"weight": layer.weight().data(context_of(inputs)), "input": inputs, "output": output}
        for name, array in arrays.items():
            self._add(layer, name, array)
        watched = WatchedArray(output)
        self._watch(layer, "gradient", watched)
        return watched.sum

    def _attention_of(self, path: str, block: Block) -> CountedAttention:
        if path not in self._attentions:
            self._attentions[path] = CountedAttention(path, block)
            self._ran.append(self._attentions[path])
        return self._attentions[path]

    def _watch(self, layer: CountedLayer | CountedAttention, name: str, watched: WatchedArray) -> None:
        self._watched.append((layer, name, watched))

    def add_gradients(self, buffer: GradientBuffer, scale: float) -> None:
        """Count a Trainer's gradients of weights, and the gradients of outputs that were computed so far."""
        for entries in buffer.gradients():
            for place, grad, _ in entries:
                owners = [layer for layer in self._ran if layer.weight() is buffer.trainer._params[place]]
                for layer in owners:  # several where layers share a weight
                    layer.add("weight_gradient", counted(dense(grad), self._buffer, scale))
        for layer, name, watched in self._watched:
            gradient = watched.gradient()
            if gradient is not None:
                self._add(layer, name, gradient, scale)

    def _add(self, layer: CountedLayer | CountedAttention, name: str, array: Array, scale: float = 1.0) -> None:
        """Count an array, and its scaled values where it is an operand of a dense layer."""
        weight = layer.weight() if name in forecast.OPERANDS and isinstance(layer.block, gluon.nn.Dense) else None
        outputs, inputs = (0, 0) if weight is None else weight.shape
        columns, scalings = outputs if name == "gradient" else inputs, () if weight is None else self._scalings
        layer.add(name, counted(array, self._buffer, scale, columns, scalings, name == "weight"))

    def read(self) -> list[ProductCounts]:
        """Return what was counted, in the order in which the layers ran first."""
        return [layer.read() for layer in self._ran]
