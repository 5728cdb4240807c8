"""What is recorded of a step: the largest values at blocks, and how gradients are distributed.

Blocks have hooks while a step is recorded, and at no other time. Inside hybridized blocks they are called while
a graph for recorded steps is traced, see ``precision.recorded_graphs``. Nothing is read from the device before
:meth:`StepRecorder.read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from unifiedamp.backend import recording
from unifiedamp.backend.sketch import Sketch, sketch_of

from .._types import Array, Block, HostArray, Undo
from ..device.arrays import is_array
from ..layer_paths import is_symbol_block, walk
from ..mxnet_api import autograd, cast, context_of, dtype_name, gluon
from ..patches import patched
from ..precision import recorded_graphs
from ..training.gradients import GradientBuffer
from ..training.multi_tensor import by_context, dense
from .reductions import Counted, HostBuffer, count, largest, read

_WITH_ACTIVATION = (gluon.nn.Dense, gluon.nn.Conv2D.__mro__[1])
FLOATS = ("float16", "bfloat16", "float32", "float64")


class LayerRecord(NamedTuple):
    """One activation before it is read."""

    layer: str
    kind: str
    place: str
    dtype: str
    array: Array


class StepRecorder:
    """Records from its making to :meth:`stop`.

    Args:
        models: the prepared models.
        contexts: names of those that train together.
        activations: put hooks on their blocks.
        compare: sketch activations and gradients.
        first_rank: the number, among the contexts of all workers, of the first one here; None for one context alone.

    Attributes:
        traced: what hooks are called with while a graph is traced; None at other times.
    """

    def __init__(
        self, models: Sequence[Block], contexts: Sequence[str], activations: bool, compare: bool = False,
        first_rank: int | None = None,
    ) -> None:  # fmt: skip
        self._contexts, self._compare, self._first_rank = contexts, compare, first_rank
        self._sketches: dict[int, Sketch] = {}
        self._own_sketches: dict[str, dict[str, Sketch]] = {each: {} for each in contexts}
        self._gradient_sketches: dict[str, Sketch] = {}
        self._functions: dict[str, str] = {}
        self._activations: list[LayerRecord] = []
        self._counts: list[tuple[str, Counted, Counted]] = []
        self._places: list[str] = []
        self._known: dict[int, Array] = {}
        self._largest: dict[int, Counted] = {}
        self._reduced = 0
        self._losses: dict[str, Array] = {}
        self._scale = 1.0
        self._undo: list[Undo] = []
        self._buffers: list[GradientBuffer] = []
        self._blocks: set[int] = set()
        self.traced: list[recorded_graphs.TraceRecord] | None = None
        if activations:
            recorded_graphs.current.recorder = self
        for index, model in enumerate(models if activations else ()):
            blocks = dict(walk(model))
            for path, block in blocks.items():
                if isinstance(blocks.get(path.rpartition(".")[0]), _WITH_ACTIVATION) and path:
                    continue  # a Dense layer's own activation is part of it
                self._hook(path if not index else f"model{index}.{path}".rstrip("."), block)

    def _hook(self, path: str, block: Block) -> None:
        kind = type(block).__name__
        self._blocks.add(id(block))
        self._functions[path] = _last_function(block)

        def before(_: Block, args: object) -> None:
            self._on_hook(path, kind, "input", args)

        def after(_: Block, __: object, output: object) -> None:
            self._on_hook(path, kind, "output", output)

        self._undo.append(block.register_forward_pre_hook(before).detach)
        self._undo.append(block.register_forward_hook(after).detach)
        hybridized = vars(block).get("_active") and not is_symbol_block(block)
        if hybridized and not recorded_graphs.can_record(block):
            # Not by hybridize(False), which would throw the traced graphs away.
            self._undo.append(patched(block, _active=False).undo)

    def stop(self) -> None:
        """Remove the hooks and let blocks run their graphs again."""
        while self._undo:
            self._undo.pop()()
        if recorded_graphs.current.recorder is self:
            recorded_graphs.current.recorder = None
        self._known.clear()

    def records(self, block: Block) -> bool:
        """See ``recorded_graphs.ActivationRecorder``."""
        return id(block) in self._blocks

    # -- recording -----------------------------------------------------------------------------------------------

    def _on_hook(self, layer: str, kind: str, place: str, value: object) -> None:
        if not autograd.is_recording():
            return  # inference
        for array in _arrays(value):
            self.add(layer, kind, place, array)
        if self.traced is not None:
            self.traced += [
                recorded_graphs.TraceRecord(layer, kind, place, symbol) for symbol in recorded_graphs.symbols(value)
            ]

    def add(self, layer: str, kind: str, place: str, array: Array) -> None:
        """See ``recorded_graphs.ActivationRecorder``; an input that is known already is left out."""
        if dtype_name(array) not in FLOATS or not array.size or (place == "input" and id(array) in self._known):
            return
        # Kept until it is read: nothing writes to what the backward pass needs, and reading now would wait for it.
        self._known[id(array)] = array
        self._activations.append(LayerRecord(layer, kind, place, dtype_name(array), array))

    def add_gradients(self, buffer: GradientBuffer, scale: float) -> list[str]:
        """Count a Trainer's gradients, those of all contexts together; return their names."""
        found = [
            (name, dense(grad))
            for name, grads in buffer.by_name().items()
            for grad in (grads if isinstance(grads, list) else [grads])
        ]
        names = {id(grad): name for name, grad in found}
        buffer.records = True
        self._buffers.append(buffer)
        self._reduce()  # while the backward pass is on its way
        with autograd.pause():
            for group in by_context([grad for _, grad in found]):
                counts = iter(count(group, scale))
                self._counts += [(names[id(grad)], next(counts), next(counts)) for grad in group]
                self._places += [str(context_of(grad)) for grad in group]
            if self._compare:
                self._sketch_gradients(buffer, found, scale)
        self._losses |= {str(context_of(loss)): loss for loss in buffer.losses}
        self._scale = scale
        return list(dict.fromkeys(names.values()))

    def on_all_workers(self) -> bool:
        """Whether all workers recorded the step that has ended."""
        return all(buffer.all_record for buffer in self._buffers)

    def _sketch_gradients(self, buffer: GradientBuffer, found: Sequence[tuple[str, Array]], scale: float) -> None:
        if self._first_rank is None:
            self._gradient_sketches |= {name: _sketch(grad, scale) for name, grad in found}
            return
        for name, grad in found:
            self._own_sketches[str(context_of(grad))][name] = _sketch(grad, scale)
        buffer.on_reduced = lambda: self._sketch_sums(buffer, scale)

    def _sketch_sums(self, buffer: GradientBuffer, scale: float) -> None:
        """Sketch the gradients after they were summed over contexts and workers, all of which hold the sum."""
        with autograd.pause():
            for name, grads in buffer.by_name().items():
                first = grads[0] if isinstance(grads, list) else grads
                self._gradient_sketches[name] = _sketch(dense(first), scale)

    def _reduce(self) -> None:
        """Reduce the activations that were not yet to their largest values."""
        buffer = HostBuffer()
        with autograd.pause():
            for record in self._activations[self._reduced :]:
                if id(record.array) not in self._largest:
                    self._largest[id(record.array)] = largest(record.array, buffer)
                    if self._compare:
                        self._sketches[id(record.array)] = _sketch(record.array, batch=True)
        self._reduced = len(self._activations)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> recording.RecordedStep:
        """Return all that was recorded; waits for the device."""
        self._reduce()
        values = read([self._largest[id(record.array)] for record in self._activations])
        activations = [
            recording.Activation(*record[:4], float(value[0]), self._functions.get(record.layer, ""))
            for record, value in zip(self._activations, values, strict=True)
        ]
        losses = {context: float(loss.asnumpy().reshape(())) for context, loss in self._losses.items()}
        loss = sum(losses.values()) if losses else None
        parts = iter(read([part for _, *parts in self._counts for part in parts]))
        counts = [np.stack([next(parts), next(parts)]).astype(np.int64) for _ in self._counts]
        drawn = [self._sketches[id(record.array)] for record in self._activations] if self._compare else []
        local = self._of_contexts(activations, drawn, counts, losses)
        sketches = recording.StepSketches(() if local else drawn, self._gradient_sketches) if self._compare else None
        return recording.RecordedStep(
            self._scale, loss, self._gradients(counts), activations, local, unreduced=bool(local), sketches=sketches
        )

    def _gradients(self, counts: Sequence[HostArray]) -> dict[str, recording.GradientCounts]:
        sums: dict[str, HostArray] = {}
        for (name, *_), both in zip(self._counts, counts, strict=True):
            sums[name] = sums[name] + both if name in sums else both
        return {name: recording.GradientCounts(*both.tolist()) for name, both in sums.items()}

    def _of_contexts(
        self, activations: Sequence[recording.Activation], drawn: Sequence[Sketch], counts: Sequence[HostArray],
        losses: Mapping[str, float],
    ) -> list[recording.LocalStep]:  # fmt: skip
        """Return what was computed on each context, of several or of several workers; gradients before the sum."""
        if self._first_rank is None:
            return []
        where = [str(context_of(record.array)) for record in self._activations]
        finite = {each: {name: True for name, *_ in self._counts} for each in self._contexts}
        for context, (name, *_), both in zip(self._places, self._counts, counts, strict=True):
            finite[context][name] = not both[0][-2:].any()  # inf and nan
        found = []
        for rank, context in enumerate(self._contexts, self._first_rank):
            rows = [row for row, place in zip(activations, where, strict=True) if place == context]
            own = [each for each, place in zip(drawn, where, strict=False) if place == context]
            sketches = recording.StepSketches(own, self._own_sketches[context]) if self._compare else None
            found.append(recording.LocalStep(rank, rows, finite[context], losses.get(context), sketches))
        return found


def _arrays(value: object) -> Iterator[Array]:
    if is_array(value):
        if dtype_name(value) in FLOATS and value.size and value.stype == "default":
            yield value
    elif isinstance(value, Mapping):
        yield from _arrays(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)


def _sketch(array: Array, scale: float = 1.0, batch: bool = False) -> Sketch:
    """Return the sketch of an array divided by ``scale``, computed by numpy, of a copy on the host.

    ``batch``: also of its sum over the first dimension.
    """
    values = cast(array, "float32").asnumpy() / np.float32(scale)
    found = sketch_of(values, batch)
    return Sketch(found.shape, dtype_name(array), found.norm, found.values, found.ordered, found.batch)


def _last_function(block: Block) -> str:
    """Return the name of the activation function that a block applies last; empty for none."""
    inner = block if isinstance(block, gluon.nn.Activation) else getattr(block, "act", None)
    return str(inner._act_type) if isinstance(inner, gluon.nn.Activation) else ""
