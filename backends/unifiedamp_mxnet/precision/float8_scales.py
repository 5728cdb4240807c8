"""Delayed scaling: the scale of each operand follows from the largest magnitudes of earlier optimizer steps.

As NVIDIA's Transformer Engine has it (``DelayedScaling`` with ``amax_compute_algo="max"``)::

    scale = float8_max / max(amax_history) / 2**margin

The histories are numpy arrays. Operators in Python find the scales of their layer by a key in their attributes, which
hybridized graphs keep too; they note magnitudes in backward passes, on MXNet's threads. A layer's first iteration
scales by present magnitudes. An amax that is inf or nan, and every amax of an iteration in which a step was skipped, is
dropped.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping

import numpy as np

from unifiedamp.backend import LARGEST_SCALE, AmaxHistory, Float8Recipe
from unifiedamp.backend.amax_history import OPERANDS, operand_limits

from .._types import HostArray, Parameter
from ..mxnet_api import mx

_FIND: weakref.WeakValueDictionary[str, LayerScales] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def find(key: str) -> LayerScales | None:
    """Return the scales of a layer by their key; None where its session is gone."""
    return _FIND.get(key)


class LayerScales:
    """The history and scales of one layer.

    Args:
        length: iterations that the history holds.
        margin: powers of two that are left below float8's maximum.

    Attributes:
        key: what :func:`find` takes.
        history: float32 of shape (3, length), the newest iteration first.
        seen: a backward pass has run.
        ready: the scales follow from a history.
    """

    def __init__(self, length: int, margin: int) -> None:
        self._limits = np.array(operand_limits(margin), np.float32)
        self._scales, self._amax = np.ones(len(OPERANDS), np.float32), np.zeros(len(OPERANDS), np.float32)
        self.history = np.zeros((len(OPERANDS), length), np.float32)
        self.seen = self.ready = False
        self.key = str(next(_NUMBERS))
        _FIND[self.key] = self

    def now(self, operand: str) -> HostArray | None:
        """Return the scale of an operand; None for that of its present magnitude."""
        return self._scales[[*OPERANDS].index(operand)] if self.ready else None

    def note(self, **operands: HostArray) -> None:
        """Raise what is kept of this iteration to the largest magnitudes of the operands; an inf or nan stays."""
        found = [np.max(np.abs(operands[name]), initial=np.float32(0)) for name in OPERANDS]
        self._amax = np.maximum(self._amax, np.array(found, np.float32))
        self.seen = True

    def end(self, skipped: bool) -> None:
        """End an iteration: its magnitudes enter the history, and set the scales of the next."""
        good = np.isfinite(self._amax) & (self._amax > 0) & (not skipped)
        moved = np.concatenate([self._amax[:, None], self.history[:, :-1]], 1)
        self.history = np.where(good[:, None], moved, self.history)
        self._set_scales()
        self.discard()
        self.ready = self.ready or self.seen

    def discard(self) -> None:
        """Forget the magnitudes of this iteration."""
        self._amax = np.zeros_like(self._amax)

    def load(self, history: HostArray) -> None:
        """Set the history, of which the newest iterations are kept."""
        kept = history[:, : self.history.shape[1]]
        self.history = np.zeros_like(self.history)
        self.history[:, : kept.shape[1]] = kept
        self.seen = self.ready = bool(kept.any())
        self._scales = np.ones_like(self._scales)
        self._set_scales()
        self.discard()

    def _set_scales(self) -> None:
        largest = self.history.max(1)
        with np.errstate(divide="ignore"):
            found = np.minimum(self._limits / largest, np.float32(LARGEST_SCALE))
        self._scales = np.where(largest > 0, found, self._scales)


class DelayedScaling(AmaxHistory):
    """The amax histories of a session's layers, in numpy arrays on the host.

    Args:
        recipe: the session's; others than "delayed" have no layers here.
    """

    means = "numpy arrays, updated at the end of each iteration, which waits for its backward passes"

    def __init__(self, recipe: Float8Recipe) -> None:
        self._recipe, self._layers = recipe, dict[str, LayerScales]()
        self._weights: dict[str, Parameter] = {}
        self._skipped = False

    def add(self, weights: Mapping[str, Parameter]) -> dict[str, LayerScales]:
        """Return name → scales of layers, new ones where they are not known; ``weights``: name → its weight."""
        self._weights.update(weights)
        for name in weights:
            if name not in self._layers:
                self._layers[name] = LayerScales(self._recipe.amax_history, self._recipe.margin)
        return {name: self._layers[name] for name in weights}

    def note_step(self, skipped: bool, ends_iteration: bool) -> None:
        """Take in an optimizer's step of this iteration."""
        self._skipped = self._skipped or skipped
        if ends_iteration:
            self.end()

    def end(self) -> None:
        """End an iteration."""
        skipped, self._skipped = self._skipped, False
        if self._layers:
            mx.nd.waitall()
        for layer in self._layers.values():
            layer.end(skipped)

    def discard(self) -> None:
        """Forget the magnitudes of an iteration that is discarded."""
        self._skipped = False
        if self._layers:
            mx.nd.waitall()
        for layer in self._layers.values():
            layer.discard()

    def read(self) -> dict[str, HostArray]:
        return {name: layer.history[:, : int((layer.history > 0).any(0).sum())] for name, layer in self._layers.items()}

    def write(self, histories: Mapping[str, HostArray]) -> None:
        self._skipped = False
        nothing = np.zeros((len(OPERANDS), 0), np.float32)
        for name, layer in self._layers.items():
            layer.load(np.asarray(histories.get(name, nothing), np.float32))

    def sizes(self) -> dict[str, tuple[int, int]]:
        shapes = {name: weight.shape for name, weight in self._weights.items()}
        return {name: (shape[1], shape[0]) for name, shape in shapes.items() if all(size > 0 for size in shape)}
