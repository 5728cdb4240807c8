"""What is recorded of a step: the largest values at layers, and how gradients are distributed.

Layers get a recording subclass of their class while a step is recorded, and at no other time. An eager step records
tensors that hold values; a trace of a compiled step records tensors of its graph, which each of its runs returns.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import recording
from unifiedamp.backend.sketch import Sketch

from .. import patches
from .._types import Gradient, Graph, Layer, Model, Tensor
from ..device.numerics import real_values
from ..precision import layers
from ..precision.autocast import thread
from ..precision.tapes import current_home
from .buckets import count_both, count_now
from .sketches import TraceSketches, whole_values
from .traced_records import TracedRecords

RECORDER = "_unifiedamp_recorder"


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
        largest: per tensor seen, its largest absolute value and whether all were finite, as two float32 numbers.
        counts: per gradient, int32 of shape (2, buckets): scaled and true.
        scalars: "scale", and for each replica "loss" and its index.
        layers, gradients: sketches of what ``largest`` and ``counts`` are of, where runs are to be compared.
    """

    def __init__(self, home: Graph | None) -> None:
        self.home = home
        self.activations: list[LayerRecord] = []
        self.names: list[tuple[str, int]] = []
        self.largest: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.scalars: dict[str, Any] = {}
        self.layers, self.gradients = TraceSketches("layers", batch=True), TraceSketches("gradients", batch=False)
        self.known: dict[int, tuple[Callable[[], Any], int]] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers as few tensors, to be read or returned from a trace."""
        found: dict[str, Tensor] = dict(self.scalars)
        if self.largest:
            found["largest"] = tf.stack(self.largest)
        if self.counts:
            found["counts"] = tf.stack(self.counts)
        return {**found, **self.layers.tensors(), **self.gradients.tensors()}

    def release_tensors(self) -> dict[str, Tensor]:
        """Return :meth:`tensors`, and drop them here with their graph."""
        found = self.tensors()
        self.home, self.largest, self.counts, self.scalars = None, [], [], dict.fromkeys(self.scalars)
        self.layers.release()
        self.gradients.release()
        self.known.clear()
        return found


class StepRecorder:
    """Records since recording began.

    Args:
        models: the prepared models.
        activations: record at their layers, until :meth:`stop`.
        replica: returns the index of the calling replica.
        compare: sketch activations and gradients; of one replica alone.
        weights: reads the weights, to compare what they were when a traced step began.

    Attributes:
        key: traces of a compiled step with the same key record the same.
        fitting: a step of ``fit`` runs, which has no autocast region.
        tracing, take, here: those of :class:`TracedRecords`.
    """

    def __init__(
        self, models: Sequence[Model], activations: bool, replica: Callable[[], int], compare: bool = False,
        weights: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:  # fmt: skip
        self._replica, self._compare, self._weights = replica, compare, weights
        self._before: Mapping[str, Any] = {}
        self.key = "compare" if compare else "activations" if activations else "gradients"
        self._functions: dict[str, str] = {}
        self.fitting = False
        self._records = TracedRecords(TraceRecord)
        self.tracing, self.take, self.here = self._records.tracing, self._records.take, self._records.here
        self._layers: list[tuple[Layer, type]] = []
        for index, model in enumerate(models if activations else ()):
            for path, layer in layers.walk(model):
                self._attach(path if not index else f"model{index}.{path}".rstrip("."), layer)

    def _attach(self, path: str, layer: Layer) -> None:
        if RECORDER in vars(layer):
            return
        self._layers.append((layer, type(layer)))
        self._functions[path] = layers.last_function(layer)
        vars(layer)[RECORDER] = (self, path)
        patches.set_class(layer, _recording_class(type(layer)))

    def stop(self) -> None:
        """Restore the layers' classes."""
        while self._layers:
            layer, kind = self._layers.pop()
            patches.set_class(layer, kind)
            del vars(layer)[RECORDER]
        self._records.current.known.clear()

    def begin_trace(self) -> None:
        """A traced step is about to run: the loop may have written to its weights."""
        if self._compare:
            self._before = self._weights()

    # -- recording -----------------------------------------------------------------------------------------------

    def activation(self, layer: str, kind: str, place: str, value: object) -> None:
        """Record what went into a layer or came out of it."""
        record = self._records.current
        if not (self.fitting or thread.training) or thread.recomputing or current_home() is not record.home:
            return  # inference; a second time; or inside a loop, a branch or a function, which keeps its tensors
        for tensor in _floats(value):
            known = record.known.get(id(tensor))
            if known is None or known[0]() is not tensor:
                which = len(record.largest)
                record.known[id(tensor)] = (_reference(tensor), which)
                record.largest.append(_largest(tensor))
                if self._compare:
                    record.layers.add(tensor, tensor.dtype.name)
            elif place == "input":
                continue
            else:
                which = known[1]
            about = (layer, kind, place, tensor.dtype.name, which, self._replica())
            record.activations.append(LayerRecord(*about, self._functions.get(layer, "")))

    def gradients(self, gradients: Mapping[str, Gradient], scale: Tensor | None, loss: Tensor | None) -> None:
        """Count gradients; ``scale`` is what they were multiplied by (None: nothing)."""
        record, replica = self._records.current, self._replica()
        inverse = tf.constant(1.0) if scale is None else tf.math.reciprocal(scale)
        both = count_now if tf.executing_eagerly() else count_both
        for name, gradient in gradients.items():
            record.names.append((name, replica))
            record.counts.append(both(tf.cast(real_values(gradient), tf.float32), inverse))
            if self._compare:
                record.gradients.add(whole_values(gradient), gradient.dtype.name)
        if scale is not None:
            record.scalars["scale"] = scale
        if loss is not None:
            record.scalars[f"loss{replica}"] = tf.cast(loss, tf.float32)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> recording.RecordedStep:
        """Return all that was recorded; waits for the device."""
        activations: list[recording.Activation] = []
        gradients: dict[str, recording.GradientCounts] = {}
        scalars: dict[str, float] = {}
        local: list[recording.LocalStep] = []
        drawn: list[Sketch] = []
        of_gradients: dict[str, Sketch] = {}
        for record, tensors in [*self._records.taken, (self._records.current, self._records.current.tensors())]:
            values = {name: tensor.numpy() for name, tensor in tensors.items()}
            activations += _activations(record, values.get("largest", ()))
            gradients |= _gradients(record, values.get("counts", ()))
            local += _of_replicas(record, values.get("largest", ()), values.get("counts", ()))
            scalars |= {name: float(values[name]) for name in record.scalars}
            if self._compare:
                of_layers = record.layers.read(values)
                drawn += [of_layers[seen.which] for seen in record.activations]
                found = record.gradients.read(values, scalars.get("scale", 1.0))
                of_gradients |= {name: one for (name, _), one in zip(record.names, found, strict=True)}
        losses = [value for name, value in scalars.items() if name != "scale"]
        loss = sum(losses) if losses else None
        sketches = recording.StepSketches(drawn, of_gradients) if self._compare else None
        scale = scalars.get("scale", 1.0)
        return recording.RecordedStep(
            scale, loss, gradients, activations, local, sketches=sketches, weights=self._before
        )


def _activations(record: TraceRecord, largest: Sequence[Any]) -> list[recording.Activation]:
    """Return a record's activations; of the same call of a layer on several replicas, the largest value."""
    calls: Counter[tuple[object, ...]] = Counter()
    found: dict[tuple[object, ...], recording.Activation] = {}
    for seen in record.activations:
        value, finite = largest[seen.which]
        row = recording.Activation(*seen[:4], float(value) if finite else math.inf, seen.function)
        place = (*seen[:4], calls[*seen[:4], seen.replica])
        calls[*seen[:4], seen.replica] += 1
        if place not in found or row.largest > found[place].largest:
            found[place] = row
    return list(found.values())


def _of_replicas(record: TraceRecord, largest: Sequence[Any], counts: Sequence[Any]) -> list[recording.LocalStep]:
    """Return what each of several replicas of this process computed; their gradients before the sum."""
    replicas = sorted({replica for _, replica in record.names})
    if len(replicas) < 2:
        return []
    activations: dict[int, list[recording.Activation]] = {each: [] for each in replicas}
    for seen in record.activations:
        value, is_finite = largest[seen.which]
        row = recording.Activation(*seen[:4], float(value) if is_finite else math.inf)
        activations.setdefault(seen.replica, []).append(row)
    finite: dict[int, dict[str, bool]] = {each: {} for each in replicas}
    for (name, replica), both in zip(record.names, counts, strict=True):
        finite[replica][name] = not both[0][-2:].any()  # inf and nan
    return [recording.LocalStep(each, activations[each], finite[each]) for each in replicas]


def _gradients(record: TraceRecord, counts: Sequence[Any]) -> dict[str, recording.GradientCounts]:
    """Return a record's counts by name, those of all replicas together."""
    sums: dict[str, dict[int, Any]] = {}
    for (name, replica), both in zip(record.names, counts, strict=True):
        sums.setdefault(name, {})[replica] = both
    totals = {name: sum(each.values()) for name, each in sums.items()}
    return {name: recording.GradientCounts(scaled.tolist(), true.tolist()) for name, (scaled, true) in totals.items()}


@functools.cache
def _recording_class(kind: Any) -> type:
    def __call__(self: Layer, *args: Any, **kwargs: Any) -> Any:
        recorder, path = vars(self)[RECORDER]
        name = layers.original_class(self).__name__
        recorder.activation(path, name, "input", (args, kwargs))
        output = kind.__call__(self, *args, **kwargs)
        recorder.activation(path, name, "output", output)
        return output

    return patches.subclass(kind, layers.original_of(kind), {"__call__": __call__})


def _largest(tensor: Tensor) -> Tensor:
    size = tf.abs(tf.cast(tensor, tf.float32))
    finite = tf.reduce_all(tf.math.is_finite(size))
    return tf.stack([tf.reduce_max(size), tf.cast(finite, tf.float32)])


def _reference(tensor: Tensor) -> Callable[[], Any]:
    """Return what gives the tensor while it lives; an eager tensor must not be kept alive."""
    return weakref.ref(tensor) if tf.executing_eagerly() else lambda: tensor


def _floats(value: object) -> Iterator[Tensor]:
    for item in tf.nest.flatten(value):
        if isinstance(item, tf.Tensor) and item.dtype.is_floating and item.shape.num_elements() != 0:
            yield item
