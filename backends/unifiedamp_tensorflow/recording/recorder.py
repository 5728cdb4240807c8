"""What is noted of a recorded step: the largest values at layers, and how gradients are distributed.

Layers are given a listening subclass of their class while a step is recorded, and at no other time. An eager step notes
tensors that hold values; a trace of a compiled step notes tensors of its graph, which each of its runs returns.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import recording

from ..precision import layers
from ..precision.autocast import thread
from ..training.scaler import dense_values
from ..training.tapes import current_home
from .buckets import count_both, count_now

NOTES = "_unifiedamp_notes"


class Noted(NamedTuple):
    """One activation, without its values."""

    layer: str
    kind: str
    place: str
    dtype: str
    which: int


class Page:
    """What one eager step, or one trace, notes: what it saw, and the tensors that hold the numbers.

    Attributes:
        home: the graph of its tensors; None for eager.
        activations: what was seen, each pointing into ``largest``.
        names: of the gradients, as ``counts`` holds them.
        largest: per tensor seen, its largest absolute value and whether all were finite, as two float32 numbers.
        counts: per gradient, int32 of shape (2, buckets): scaled and true.
        scalars: "scale" and "loss".
    """

    def __init__(self, home: Any) -> None:
        self.home = home
        self.activations: list[Noted] = []
        self.names: list[str] = []
        self.largest: list[Any] = []
        self.counts: list[Any] = []
        self.scalars: dict[str, Any] = {}
        self.known: dict[int, tuple[Any, int]] = {}

    def tensors(self) -> dict[str, Any]:
        """Return the numbers as few tensors, to be read or to leave a trace by."""
        found: dict[str, Any] = dict(self.scalars)
        if self.largest:
            found["largest"] = tf.stack(self.largest)
        if self.counts:
            found["counts"] = tf.stack(self.counts)
        return found

    def give_up_tensors(self) -> dict[str, Any]:
        """Return :meth:`tensors` and keep what is known of them alone, without their graph."""
        found = self.tensors()
        self.home, self.largest, self.counts, self.scalars = None, [], [], dict.fromkeys(self.scalars)
        self.known.clear()
        return found


class Notes:
    """What was noted since recording began.

    Args:
        models: the prepared models.
        activations: listen at their layers, until :meth:`stop`.

    Attributes:
        key: which traces of a compiled step note the same.
    """

    def __init__(self, models: Sequence[Any], activations: bool) -> None:
        self.key = "activations" if activations else "gradients"
        self._page = Page(None)
        self._taken: list[tuple[Page, Mapping[str, Any]]] = []
        self._listening: list[tuple[Any, type]] = []
        for index, model in enumerate(models if activations else ()):
            for path, layer in layers.walk(model):
                self._listen(path if not index else f"model{index}.{path}".rstrip("."), layer)

    def _listen(self, path: str, layer: Any) -> None:
        if NOTES in vars(layer):
            return
        self._listening.append((layer, type(layer)))
        vars(layer)[NOTES] = (self, path)
        layers.set_class(layer, _listening_class(type(layer)))

    def stop(self) -> None:
        """Give layers their classes back."""
        while self._listening:
            layer, kind = self._listening.pop()
            layers.set_class(layer, kind)
            del vars(layer)[NOTES]
        self._page.known.clear()

    # -- traces --------------------------------------------------------------------------------------------------

    @contextmanager
    def tracing(self, pages: list[Page]) -> Iterator[dict[int, Any]]:
        """A context that a step is traced in: what is noted inside is the trace's own, and its page goes to ``pages``.

        It yields a mapping that at the end holds what runs of the trace must return for :meth:`take`.
        """
        outside, self._page = self._page, Page(current_home())
        noted: dict[int, Any] = {}
        try:
            yield noted
            pages.append(self._page)
            noted[len(pages) - 1] = self._page.give_up_tensors()
        finally:
            self._page = outside

    def take(self, noted: Mapping[int, Any], pages: Sequence[Page]) -> None:
        """Take what a run of a trace returned."""
        ((number, tensors),) = noted.items()
        self._taken.append((pages[number], tensors))

    # -- noting --------------------------------------------------------------------------------------------------

    def activation(self, layer: str, kind: str, place: str, value: Any) -> None:
        """Note what went into a layer or came out of it."""
        page = self._page
        if thread.training is not True or current_home() is not page.home:
            return  # inference; or inside a loop, a branch or a function, which keeps its tensors to itself
        for tensor in _floats(value):
            known = page.known.get(id(tensor))
            if known is None or known[0]() is not tensor:
                which = len(page.largest)
                page.known[id(tensor)] = (_reference(tensor), which)
                page.largest.append(_largest(tensor))
            elif place == "input":
                continue
            else:
                which = known[1]
            page.activations.append(Noted(layer, kind, place, tensor.dtype.name, which))

    def gradients(self, gradients: Mapping[str, Any], scale: Any, loss: Any) -> None:
        """Count gradients; ``scale`` is what they were multiplied by (None: nothing)."""
        page = self._page
        inverse = tf.constant(1.0) if scale is None else tf.math.reciprocal(scale)
        both = count_now if tf.executing_eagerly() else count_both
        for name, gradient in gradients.items():
            page.names.append(name)
            page.counts.append(both(tf.cast(dense_values(gradient), tf.float32), inverse))
        if scale is not None:
            page.scalars["scale"] = scale
        if loss is not None:
            page.scalars["loss"] = tf.cast(loss, tf.float32)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> recording.RecordedStep:
        """Return all that was noted; waits for the device."""
        activations: list[recording.Activation] = []
        gradients: dict[str, recording.GradientCounts] = {}
        scalars: dict[str, float] = {}
        for page, tensors in [*self._taken, (self._page, self._page.tensors())]:
            values = {name: tensor.numpy() for name, tensor in tensors.items()}
            for *about, which in page.activations:
                largest, finite = values["largest"][which]
                activations.append(recording.Activation(*about, float(largest) if finite else math.inf))
            for name, (scaled, true) in zip(page.names, values.get("counts", ()), strict=True):
                gradients[name] = recording.GradientCounts(scaled.tolist(), true.tolist())
            scalars |= {name: float(values[name]) for name in page.scalars}
        return recording.RecordedStep(scalars.get("scale", 1.0), scalars.get("loss"), gradients, activations)


@functools.cache
def _listening_class(kind: Any) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        notes, path = vars(self)[NOTES]
        name = layers.original_class(self).__name__
        notes.activation(path, name, "input", (args, kwargs))
        output = kind.__call__(self, *args, **kwargs)
        notes.activation(path, name, "output", output)
        return output

    shown = layers.original_class_of(kind)
    body = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__class__": property(lambda _: shown), "__call__": __call__,
    }  # fmt: skip
    return type(kind)(kind.__name__, (kind,), body)


def _largest(tensor: Any) -> Any:
    size = tf.abs(tf.cast(tensor, tf.float32))
    finite = tf.reduce_all(tf.math.is_finite(size))
    return tf.stack([tf.reduce_max(size), tf.cast(finite, tf.float32)])


def _reference(tensor: Any) -> Any:
    """Return what gives the tensor while it lives: an eager one must not be kept, one of a graph lives as long."""
    return weakref.ref(tensor) if tf.executing_eagerly() else lambda: tensor


def _floats(value: Any) -> Iterator[Any]:
    for item in tf.nest.flatten(value):
        if isinstance(item, tf.Tensor) and item.dtype.is_floating and item.shape.num_elements() != 0:
            yield item
