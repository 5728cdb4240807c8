"""Delayed scaling: the scale of each operand follows from the largest magnitudes of earlier optimizer steps.

As NVIDIA's Transformer Engine has it (``DelayedScaling`` with ``amax_compute_algo="max"``)::

    scale = float8_max / max(amax_history) / 2**margin

Histories and scales are variables, changed by operations that can be traced and compiled by XLA. Magnitudes are noted
in backward passes. A layer's first iteration scales by present magnitudes. An amax that is inf or nan, and each amax of
an iteration in which a step was skipped, is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import LARGEST_SCALE, AmaxHistory, Float8Recipe
from unifiedamp.backend.amax_history import OPERANDS, operand_limits

from .._types import Tensor, Variable
from .block_rounding import amax_of


def _variable(value: Any, name: str) -> Variable:
    return tf.Variable(value, trainable=False, dtype=tf.float32, name=f"unifiedamp/{name}")


class LayerScales:
    """The history and scales of one layer.

    Args:
        length: iterations that the history holds.
        margin: powers of two that are left below float8's maximum.

    Attributes:
        history: float32 of shape (3, length), the newest iteration first.
    """

    def __init__(self, length: int, margin: int) -> None:
        self._limits = np.array(operand_limits(margin), np.float32)
        self.history = _variable(np.zeros((len(OPERANDS), length)), "amax_history")
        # 0 scales by present magnitudes, until a first iteration has ended.
        self._scales = _variable(np.zeros(len(OPERANDS)), "float8_scales")
        self._amax = _variable(np.zeros(len(OPERANDS)), "float8_amax")
        self._seen = _variable(0.0, "float8_seen")

    def now(self) -> Tensor:
        """Return the scales of the operands, float32 of shape (3,); 0 for that of the present magnitude."""
        return self._scales.read_value()

    def note(self, *operands: Tensor) -> None:
        """Raise what is kept of this iteration to the largest magnitudes of the operands; an inf or nan stays."""
        found = tf.stack([amax_of(tf.cast(each, tf.float32)) for each in operands])
        kept = self._amax.read_value()
        self._amax.assign(tf.where(tf.bitcast(found, tf.int32) > tf.bitcast(kept, tf.int32), found, kept))
        self._seen.assign(1.0)

    def end(self, skipped: Tensor) -> None:
        """End an iteration: its magnitudes enter the history, and set the scales of the next."""
        amax, history = self._amax.read_value(), self.history.read_value()
        good = tf.math.is_finite(amax) & (amax > 0) & tf.logical_not(skipped)
        moved = tf.concat([amax[:, None], history[:, :-1]], 1)
        history = tf.where(good[:, None], moved, history)
        self.history.assign(history)
        self._set_scales(history)
        self.discard()

    def _set_scales(self, history: Tensor) -> None:
        largest, scales = tf.reduce_max(history, 1), self._scales.read_value()
        without = tf.where((self._seen.read_value() > 0) & tf.equal(scales, 0.0), 1.0, scales)
        self._scales.assign(tf.where(largest > 0, tf.minimum(self._limits / largest, LARGEST_SCALE), without))

    def discard(self) -> None:
        """Forget the magnitudes of this iteration."""
        self._amax.assign(tf.zeros_like(self._amax))

    def load(self, history: Any) -> None:
        """Set the history, of which the newest iterations are kept."""
        kept = history[:, : self.history.shape[1]]
        rows = np.zeros(self.history.shape, np.float32)
        rows[:, : kept.shape[1]] = kept
        self.history.assign(rows)
        self._seen.assign(float(kept.any()))
        self._scales.assign(np.zeros(len(OPERANDS), np.float32))
        self._set_scales(tf.constant(rows))
        self.discard()


class DelayedScaling(AmaxHistory):
    """The amax histories of a session's layers, in variables outside the models and their checkpoints.

    Follows the session's optimizers, see ``prepared_optimizer.Follower``.

    Args:
        recipe: the session's; others than "delayed" have no layers here.
    """

    means = "variables, updated at the end of each iteration, in traces and by XLA too"

    def __init__(self, recipe: Float8Recipe) -> None:
        self._recipe, self._layers = recipe, dict[str, LayerScales]()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._skipped: Variable | None = None
        self._in_step = False

    def add(self, name: str, sizes: tuple[int, int]) -> LayerScales:
        """Return the scales of a layer; ``sizes``: its inputs and outputs."""
        self._sizes[name] = sizes
        if self._skipped is None:
            self._skipped = _variable(0.0, "float8_skipped")
        if name not in self._layers:
            self._layers[name] = LayerScales(self._recipe.amax_history, self._recipe.margin)
        return self._layers[name]

    @property
    def in_use(self) -> bool:
        """Whether there are layers."""
        return bool(self._layers)

    # -- iterations ------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, skipped: Tensor | None, ends_iteration: bool) -> Iterator[None]:
        """Around a step of the session's own.

        Args:
            skipped: bool scalar; None for never.
            ends_iteration: the iteration ends here.
        """
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
        if self._skipped is None:
            return
        if skipped is not None:
            self._skipped.assign(tf.maximum(self._skipped.read_value(), tf.cast(skipped, tf.float32)))
        if ends_iteration:
            self.end_iteration()

    def end_iteration(self) -> None:
        """End an iteration: its magnitudes enter the histories, and set the scales of the next."""
        if self._skipped is None:
            return
        skipped = self._skipped.read_value() > 0
        self._skipped.assign(0.0)
        for layer in self._layers.values():
            layer.end(skipped)

    def discard(self) -> None:
        """Forget the magnitudes of an iteration that is discarded."""
        if self._skipped is not None:
            self._skipped.assign(0.0)
        for layer in self._layers.values():
            layer.discard()

    # -- native steps ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every step may be."""

    def guard(self) -> AbstractContextManager[Any]:
        """Need no context."""
        return nullcontext()

    def begin(self) -> None:
        """Before an applied step."""

    def end(self) -> None:
        """After an applied step: one that the session did not make ends an iteration."""
        if not self._in_step:
            self.end_iteration()

    # -- state -----------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        rows = {name: layer.history.numpy() for name, layer in self._layers.items()}
        return {name: history[:, : int((history > 0).any(0).sum())] for name, history in rows.items()}

    def write(self, histories: Mapping[str, Any]) -> None:
        if self._skipped is not None:
            self._skipped.assign(0.0)
        nothing = np.zeros((len(OPERANDS), 0), np.float32)
        for name, layer in self._layers.items():
            layer.load(np.asarray(histories.get(name, nothing), np.float32))

    def sizes(self) -> dict[str, tuple[int, int]]:
        return dict(self._sizes)


def names(paths: Sequence[str], model: int) -> list[str]:
    """Return the names of a model's layers, in order: no two alike, and those of models after the first say which.

    Args:
        paths: of the layers, such as those by which states are saved.
        model: how many models came before.
    """
    prefix = f"model{model}." if model else ""
    found: dict[str, None] = {}
    for path in paths:
        name, count = path, 1
        while name in found or (count > 1 and name in paths):
            count += 1
            name = f"{path}_{count}"
        found[name] = None
    return [prefix + (name or "(the model)") for name in found]
