"""What is counted of a step for a forecast: the operands and results of layers' products.

Layers get a counting subclass of their class meanwhile. As in ``step_recorder``, an eager step holds tensors with
values, and a trace of a compiled step tensors of its graph, which each of its runs returns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from unifiedamp.backend import Float8Recipe, ProductCounts, TensorCounts, forecast

from .. import patches
from .._types import Gradient, Graph, Layer, Model, Tensor, Variable
from ..device.numerics import real_values
from ..internals import native, product_kernel, stored
from ..precision import layers
from ..precision.autocast import thread
from ..precision.float8_layers import rejection_reason
from .product_counts import DeviceCounts, counted, watched
from .scaled_values import scale_values
from .traced_records import TracedRecords

Key: TypeAlias = tuple[str, str, str]
Names: TypeAlias = "Callable[[Variable], str | None]"

COUNTER = "_unifiedamp_counter"
K: Any = tf.keras.layers
AT_INPUTS = (K.Conv1DTranspose, K.Conv2DTranspose, K.Conv3DTranspose)
"""Layers whose kernel is applied at each value of the input."""
COUNTED = (K.Dense, K.EinsumDense, K.Conv1D, K.Conv2D, K.Conv3D, K.DepthwiseConv2D, *AT_INPUTS)


class CountedLayer:
    """A layer that is counted.

    Args:
        path: the layer's.
        layer: the layer.
    """

    def __init__(self, path: str, layer: Layer) -> None:
        self.path, self.layer = path, layer
        kind: Any = layers.original_class(layer)
        self.kind: str = kind.__name__
        why = rejection_reason(layer, layer.dtype_policy.name, None, Float8Recipe().multiple)
        self.float8 = "only dense layers are" if why is None else why

    def kernel(self) -> Variable:
        """Return the kernel; Keras 2's may cast itself when it is read."""
        return native(product_kernel(self.layer))

    def work(self, inputs: Tensor, output: Tensor) -> Tensor:
        """Return the multiplications of a forward pass, int64."""
        shape, layer = [int(size) for size in self.kernel().shape], self.layer
        if hasattr(layer, "equation"):
            given, _, _ = layer.equation.replace(" ", "").partition("->")
            left, _, right = given.partition(",")
            labels = [label for label in right if label != "."]
            per_input = math.prod(size for label, size in zip(labels, shape, strict=True) if label not in left)
            return tf.size(inputs, tf.int64) * per_input
        if isinstance(layer, K.Dense):
            return tf.size(inputs, tf.int64) * shape[-1]
        if isinstance(layer, AT_INPUTS):
            return tf.size(inputs, tf.int64) * math.prod(shape[:-1])
        kept = 2 if isinstance(layer, K.DepthwiseConv2D) else 1
        return tf.size(output, tf.int64) * math.prod(shape[:-kept])


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
                if isinstance(layer, COUNTED) and COUNTER not in vars(layer):
                    self._attach(path if not index else f"model{index}.{path}".rstrip("."), layer)

    def _attach(self, path: str, layer: Layer) -> None:
        self._layers[path] = CountedLayer(path, layer)
        self._classes.append((layer, type(layer)))
        vars(layer)[COUNTER] = functools.partial(self.called, self._layers[path])
        patches.set_class(layer, _counting_class(type(layer)))

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

    def _forward(self, layer: CountedLayer, inputs: Tensor, output: Tensor) -> None:
        record = self._records.current
        work = layer.work(inputs, output)
        record.work[layer.path] = work + record.work[layer.path] if layer.path in record.work else work
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

    def _gradient(self, layer: CountedLayer, gradient: Tensor) -> None:
        if self.here():
            self._count(layer, "gradient", gradient, self._inverse())

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
            name = (names or self._names)(layer.kernel()) if path in self._records.current.work else None
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
            )
            for path, number in work.items()
        ]  # fmt: skip


@functools.cache
def _counting_class(kind: Any) -> type:
    @functools.wraps(kind.call)
    def call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[COUNTER](kind.call, *args, **kwargs)

    return patches.subclass(kind, layers.original_of(kind), {"call": call})
