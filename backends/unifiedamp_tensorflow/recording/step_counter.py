"""What is counted of a step for a forecast: the operands and results of layers' products.

Layers get a counting subclass of their class meanwhile. As in ``step_recorder``, an eager step holds tensors with
values, and a trace of a compiled step tensors of its graph, which each of its runs returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from unifiedamp.backend import ProductCounts, TensorCounts, forecast

from .. import patches
from .._types import Gradient, Graph, Layer, Model, Tensor, Variable
from ..device.numerics import real_values
from ..internals import COMPUTE_ATTENTION, stored
from ..precision import layers
from ..precision.autocast import thread
from .counted_layers import COUNTED, CountedAttention, CountedLayer, K, is_attention
from .product_counts import DeviceCounts, counted, watched
from .scaled_values import scale_values
from .traced_records import TracedRecords

Key: TypeAlias = tuple[str, str, str]
Names: TypeAlias = "Callable[[Variable], str | None]"

COUNTER = "_unifiedamp_counter"


class CountRecord:
    """What one eager step, or one trace, counts.

    Attributes:
        home: the graph of its tensors; None for eager.
        counts: layer's path, tensor's name, and scaling or "" → its counts.
        work: layer's path → multiplications.
    """

    def __init__(self, home: Graph | None) -> None:
        self.home = home
        self.counts: dict[Key, DeviceCounts] = {}
        self.work: dict[str, Tensor] = {}
        self._keys: list[Key] = []
        self._layers: list[str] = []

    def add(self, key: Key, found: DeviceCounts) -> None:
        """Add the counts of a tensor."""
        before = self.counts.get(key)
        self.counts[key] = found if before is None else before.plus(found)

    def release_tensors(self) -> dict[str, Tensor]:
        """Return the numbers as few tensors, and drop them here with their graph."""
        self._keys, self._layers = list(self.counts), list(self.work)
        found = {}
        if self.counts:
            found["counts"] = tf.stack([each.counts for each in self.counts.values()])
            found["largest"] = tf.stack([each.largest for each in self.counts.values()])
        if self.work:
            found["work"] = tf.stack(list(self.work.values()))
        self.home, self.counts, self.work = None, {}, {}
        return found

    def read(self, tensors: Mapping[str, Tensor]) -> tuple[dict[Key, TensorCounts], dict[str, int]]:
        """Return counts and work, given what :meth:`release_tensors` returned, or a run of its trace; waits."""
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        pairs = zip(values.get("counts", ()), values.get("largest", ()), strict=True)
        counts = {key: TensorCounts(each, float(high)) for key, (each, high) in zip(self._keys, pairs, strict=True)}
        return counts, dict(zip(self._layers, map(int, values.get("work", ())), strict=True))


class StepCounter:
    """Counts since it was made; has the methods by which compiled steps and ``fit`` serve a ``StepRecorder``.

    Args:
        models: the prepared models.
        names: gives the parameter name of a variable, None for one that no optimizer trains.
        inverse: returns the inverse of the loss scale; None without one.
        scalings: those of ``SCALINGS`` that are counted, in dense layers.

    Attributes:
        key: traces of a compiled step with the same key count the same.
        fitting: a step of ``fit`` runs, which has no autocast region.
        tracing, take, here: those of :class:`TracedRecords`.
    """

    def __init__(
        self, models: Sequence[Model], names: Names, inverse: Callable[[], Tensor | None], scalings: Sequence[str] = ()
    ) -> None:
        self._names, self._inverse, self._scalings = names, inverse, scalings
        self.key = ",".join(["forecast", *scalings])
        self.fitting = False
        self._records = TracedRecords(CountRecord)
        self.tracing, self.take, self.here = self._records.tracing, self._records.take, self._records.here
        self._layers: dict[str, CountedLayer] = {}
        self._classes: list[tuple[Layer, type]] = []
        for index, model in enumerate(models):
            for path, layer in layers.walk(model):
                counts = isinstance(layer, COUNTED) or is_attention(layer)
                if counts and COUNTER not in vars(layer):
                    self._attach(path if not index else f"model{index}.{path}".rstrip("."), layer)

    def _attach(self, path: str, layer: Layer) -> None:
        self._classes.append((layer, type(layer)))
        if is_attention(layer):
            attention = self._layers[path] = CountedAttention(path, layer)
            vars(layer)[COUNTER] = functools.partial(self.attended, attention)
        else:
            self._layers[path] = CountedLayer(path, layer)
            vars(layer)[COUNTER] = functools.partial(self.called, self._layers[path])
        patches.set_class(layer, _counting_class(type(layer), COMPUTE_ATTENTION if is_attention(layer) else "call"))

    def stop(self) -> None:
        """Restore the layers' classes."""
        while self._classes:
            layer, kind = self._classes.pop()
            patches.set_class(layer, kind)
            del vars(layer)[COUNTER]

    def begin_trace(self) -> None:
        """A traced step is about to run."""

    # -- counting ------------------------------------------------------------------------------------------------

    def called(self, counted_layer: CountedLayer, call: Callable[..., Any], inputs: Any, *args: Any, **kw: Any) -> Any:
        """Run a layer's ``call``, and count; a layer's own activation comes after its output and gradient."""
        layer: Any = counted_layer.layer
        trains = self.fitting or thread.training
        if not trains or not self.here() or not isinstance(inputs, tf.Tensor) or not inputs.dtype.is_floating:
            return call(layer, inputs, *args, **kw)
        products: list[Tensor] = []

        def note(output: Tensor) -> Tensor:
            products.append(output)
            return watched(output, functools.partial(self._gradient, counted_layer))

        activation = layer.activation
        if activation is None:
            result = note(call(layer, inputs, *args, **kw))
        else:
            with patches.attributes(layer, activation=lambda output: activation(note(output))):
                result = call(layer, inputs, *args, **kw)
            if not products:  # a class that applies its activation otherwise
                result = note(result)
        if not thread.recomputing:
            self._forward(counted_layer, inputs, products[0])
        return result

    def attended(
        self, attention: CountedAttention, compute: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor,
        *args: Any, **kw: Any,
    ) -> Any:  # fmt: skip
        """Run the products of a layer of attention, and count."""
        trains = self.fitting or thread.training
        if not trains or not self.here():
            return compute(attention.layer, query, key, value, *args, **kw)
        operands = dict(zip(forecast.ATTENTION, (query, key, value), strict=True))
        alone = [
            watched(each, functools.partial(self._gradient, attention, name=f"{name}_gradient"))
            for name, each in operands.items()
        ]
        output, *scores = compute(attention.layer, *alone, *args, **kw)
        if not thread.recomputing:
            self._note_work(attention, attention.products(query, key, value))
            for name, each in (operands | {"output": output}).items():
                self._count(attention, name, each)
        return watched(output, functools.partial(self._gradient, attention)), *scores

    def _note_work(self, layer: CountedLayer, work: Tensor) -> None:
        done = self._records.current.work
        done[layer.path] = work + done[layer.path] if layer.path in done else work

    def _forward(self, layer: CountedLayer, inputs: Tensor, output: Tensor) -> None:
        self._note_work(layer, layer.work(inputs, output))
        self._count(layer, "weight", stored(layer.kernel()))
        self._count(layer, "input", inputs)
        self._count(layer, "output", output)

    def _count(self, layer: CountedLayer, name: str, values: Any, inverse: Tensor | None = None) -> None:
        values = tf.cast(values, tf.float32)
        values = values if inverse is None else values * inverse
        self._records.current.add((layer.path, name, ""), counted(values))
        if name in forecast.OPERANDS and isinstance(layer.layer, K.Dense):
            matrix = tf.transpose(values) if name == "weight" else tf.reshape(values, [-1, values.shape[-1]])
            for scaling in self._scalings:
                scaled = scale_values(matrix, scaling, name == "weight")
                self._records.current.add((layer.path, name, scaling), counted(scaled))

    def _gradient(self, layer: CountedLayer, gradient: Tensor, name: str = "gradient") -> None:
        if self.here():
            self._count(layer, name, gradient, self._inverse())

    def gradients(
        self, gradients: Mapping[str, Gradient], scale: Tensor | None, loss: Tensor | None, names: Names | None = None
    ) -> None:
        """Count the gradients of kernels.

        Args:
            gradients: by parameter name.
            scale: what they were multiplied by; None for nothing.
            loss: not counted.
            names: the names of the optimizer whose gradients they are; None for those of all optimizers.
        """
        inverse = None if scale is None else tf.math.reciprocal(scale)
        for path, layer in self._layers.items():
            kernel = layer.kernel() if path in self._records.current.work else None
            name = None if kernel is None else (names or self._names)(kernel)
            if name is not None and name in gradients:
                self._count(layer, "weight_gradient", real_values(gradients[name]), inverse)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> list[ProductCounts]:
        """Return all that was counted, in the order in which the layers ran first; waits for the device."""
        tensors: dict[Key, TensorCounts] = {}
        work: dict[str, int] = {}
        for record, given in [*self._records.taken, (self._records.current, self._records.current.release_tensors())]:
            counts, done = record.read(given)
            for path, number in done.items():
                work[path] = work.get(path, 0) + number
            for key, found in counts.items():
                tensors[key] = found if key not in tensors else tensors[key].plus(found)
        return [
            ProductCounts(
                path, self._layers[path].kind, number, self._layers[path].float8,
                forecast.by_tensor({key[1:]: found for key, found in tensors.items() if key[0] == path}),
                self._layers[path].holds_layers,
            )
            for path, number in work.items()
        ]  # fmt: skip


@functools.cache
def _counting_class(kind: Any, method: str) -> type:
    native = getattr(kind, method)

    @functools.wraps(native)
    def call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[COUNTER](native, *args, **kwargs)

    return patches.subclass(kind, layers.original_of(kind), {method: call})
