"""What is noted of a recorded step: the largest values at blocks, and how gradients are distributed.

Hooks stand on the blocks while a step is recorded, and at no other time. Inside hybridized blocks they are called while
a graph for recorded steps is traced, see ``watched.py``. Nothing is read from the device before :meth:`Notes.read`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from unifiedamp.backend import recording

from ..device.versions import NDArray, autograd, dtype_name, gluon
from ..precision import recorded_graphs
from ..precision.layers import walk
from ..training.multi_tensor import by_context, dense
from ..training.prepared_optimizer import Bound
from .reductions import Memory, count, largest, read

_WITH_ACTIVATION = (gluon.nn.Dense, gluon.nn.Conv2D.__mro__[1])
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Noted(NamedTuple):
    """One activation before it is read."""

    layer: str
    kind: str
    place: str
    dtype: str
    array: Any


class Notes:
    """What was noted since recording began.

    Args:
        models: the prepared models.
        activations: put hooks on their blocks until :meth:`stop`.

    Attributes:
        traced: what hooks are called with while a graph is traced; None at other times.
    """

    def __init__(self, models: Sequence[Any], activations: bool) -> None:
        self._activations: list[Noted] = []
        self._counts: list[tuple[str, Any, Any]] = []
        self._known: dict[int, Any] = {}
        self._largest: dict[int, Any] = {}
        self._looked = 0
        self._losses: list[Any] = []
        self._scale = 1.0
        self._undo: list[Callable[[], None]] = []
        self._blocks: set[int] = set()
        self.traced: list[recorded_graphs.Seen] | None = None
        if activations:
            recorded_graphs.current.watcher = self
        for index, model in enumerate(models if activations else ()):
            blocks = dict(walk(model))
            for path, block in blocks.items():
                if isinstance(blocks.get(path.rpartition(".")[0]), _WITH_ACTIVATION) and path:
                    continue  # a Dense layer's own activation is part of it
                self._watch(path if not index else f"model{index}.{path}".rstrip("."), block)

    def _watch(self, path: str, block: Any) -> None:
        kind = type(block).__name__
        self._blocks.add(id(block))

        def before(_: Any, args: Any) -> None:
            self._note(path, kind, "input", args)

        def after(_: Any, __: Any, output: Any) -> None:
            self._note(path, kind, "output", output)

        self._undo.append(block.register_forward_pre_hook(before).detach)
        self._undo.append(block.register_forward_hook(after).detach)
        if (
            vars(block).get("_active")
            and not isinstance(block, gluon.SymbolBlock)
            and not recorded_graphs.by_graph(block)
        ):
            # Not by hybridize(False), which would throw the traced graphs away.
            vars(block)["_active"] = False
            self._undo.append(functools.partial(vars(block).__setitem__, "_active", True))

    def stop(self) -> None:
        """Take the hooks away and let blocks run their graphs again."""
        while self._undo:
            self._undo.pop()()
        if recorded_graphs.current.watcher is self:
            recorded_graphs.current.watcher = None
        self._known.clear()

    def watches(self, block: Any) -> bool:
        """See ``watched.Watcher``."""
        return id(block) in self._blocks

    # -- noting --------------------------------------------------------------------------------------------------

    def _note(self, layer: str, kind: str, place: str, value: Any) -> None:
        if not autograd.is_recording():
            return  # inference
        for array in _arrays(value):
            self.take(layer, kind, place, array)
        if self.traced is not None:
            self.traced += [
                recorded_graphs.Seen(layer, kind, place, symbol) for symbol in recorded_graphs.symbols(value)
            ]

    def take(self, layer: str, kind: str, place: str, array: Any) -> None:
        """See ``watched.Watcher``; an input that is known already is left out."""
        if dtype_name(array) not in FLOATS or not array.size or (place == "input" and id(array) in self._known):
            return
        # Kept until it is read: nobody writes to what the backward pass needs, and looking now would wait for it.
        self._known[id(array)] = array
        self._activations.append(Noted(layer, kind, place, dtype_name(array), array))

    def gradients(self, bound: Bound, scale: float) -> list[str]:
        """Count a Trainer's gradients, those of all contexts together."""
        found = [
            (name, dense(grad))
            for name, grads in bound.gradients().items()
            for grad in (grads if isinstance(grads, list) else [grads])
        ]
        names = {id(grad): name for name, grad in found}
        self._look()  # while the backward pass is on its way
        with autograd.pause():
            for group in by_context([grad for _, grad in found]):
                counts = iter(count(group, scale))
                self._counts += [(names[id(grad)], next(counts), next(counts)) for grad in group]
        self._losses += bound.window.losses
        self._scale = scale
        return list(dict.fromkeys(names.values()))

    def _look(self) -> None:
        """Boil down the activations that were not yet."""
        memory = Memory()
        with autograd.pause():
            for noted in self._activations[self._looked :]:
                if id(noted.array) not in self._largest:
                    self._largest[id(noted.array)] = largest(noted.array, memory)
        self._looked = len(self._activations)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> recording.RecordedStep:
        """Return all that was noted; waits for the device."""
        self._look()
        values = read([self._largest[id(noted.array)] for noted in self._activations])
        activations = [
            recording.Activation(*noted[:4], float(value[0]))
            for noted, value in zip(self._activations, values, strict=True)
        ]
        loss = float(self._losses[-1].asnumpy().reshape(())) if self._losses else None
        return recording.RecordedStep(self._scale, loss, self._gradients(), activations)

    def _gradients(self) -> dict[str, recording.GradientCounts]:
        names = [name for name, *_ in self._counts]
        values = iter(read([part for _, *parts in self._counts for part in parts]))
        sums: dict[str, Any] = {}
        for name in names:
            sums[name] = sums.get(name, 0) + np.stack([next(values), next(values)]).astype(np.int64)
        return {name: recording.GradientCounts(*both.tolist()) for name, both in sums.items()}


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, NDArray):
        if dtype_name(value) in FLOATS and value.size and value.stype == "default":
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
