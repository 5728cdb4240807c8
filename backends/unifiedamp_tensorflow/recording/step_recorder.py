"""What is recorded of a step: the largest values at layers, and how gradients are distributed.

Layers get a recording subclass of their class while a step is recorded, and at no other time. An eager step records
tensors that hold values; a trace of a compiled step records tensors of its graph, which each of its runs returns.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import recording

from .. import patches
from .._types import Gradient, Layer, Model, Tensor
from ..device.numerics import real_values
from ..precision import layers
from ..precision.autocast import thread
from ..precision.tapes import current_home
from .buckets import count_both, count_now
from .read_records import ReadRecord, merged
from .sketches import whole_values
from .trace_record import LayerRecord, TraceRecord
from .traced_records import TracedRecords

RECORDER = "_unifiedamp_recorder"


class StepRecorder:
    """Records since recording began.

    Args:
        models: the prepared models.
        activations: record at their layers, until :meth:`stop`.
        replica: returns the index of the calling replica.
        compare: sketch activations and gradients.
        weights: reads the weights, to compare what they were when a traced step began.
        first_rank: the number, among all replicas of all workers, of the first one here; None for one replica alone.

    Attributes:
        key: traces of a compiled step with the same key record the same.
        fitting: a step of ``fit`` runs, which has no autocast region.
        tracing, take, here: those of :class:`TracedRecords`.
    """

    def __init__(
        self, models: Sequence[Model], activations: bool, replica: Callable[[], int], compare: bool = False,
        weights: Callable[[], Mapping[str, Any]] = dict, first_rank: int | None = None,
    ) -> None:  # fmt: skip
        self._replica, self._compare, self._weights = replica, compare, weights
        self._before: Mapping[str, Any] = {}
        self._first_rank = first_rank
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

    def reduced(self, gradients: Mapping[str, Gradient]) -> None:
        """Sketch gradients that were summed over replicas, all of which hold the sum."""
        if not self._compare or self._replica():
            return
        names, sketches = self._records.current.summed
        for name, gradient in gradients.items():
            names.append(name)
            sketches.add(whole_values(gradient), gradient.dtype.name)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> recording.RecordedStep:
        """Return all that was recorded; waits for the device."""
        found = [
            ReadRecord(record, {name: tensor.numpy() for name, tensor in tensors.items()}, self._compare)
            for record, tensors in (
                *self._records.taken,
                (self._records.current, self._records.current.tensors()),
            )
        ]
        return merged(found, self._before, self._first_rank)


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
    # By the bits, whose order is that of magnitudes: tf.reduce_max may lose a nan.
    bits = tf.bitcast(tf.abs(tf.cast(tensor, tf.float32)), tf.int32)
    return tf.bitcast(tf.maximum(tf.reduce_max(bits), 0), tf.float32)


def _reference(tensor: Tensor) -> Callable[[], Any]:
    """Return what gives the tensor while it lives; an eager tensor must not be kept alive."""
    return weakref.ref(tensor) if tf.executing_eagerly() else lambda: tensor


def _floats(value: object) -> Iterator[Tensor]:
    for item in tf.nest.flatten(value):
        if isinstance(item, tf.Tensor) and item.dtype.is_floating and item.shape.num_elements() != 0:
            yield item
