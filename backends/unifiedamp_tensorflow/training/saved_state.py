"""A session's state in Keras's own checkpoints: saved and loaded with the prepared optimizer.

Keras saves what it finds in an optimizer's attributes: variables (TensorFlow's checkpoints), and layers with
``save_own_variables`` (``.keras`` and ``.weights.h5`` files). So the optimizer gets both. Keras's own optimizers, which
have neither, leave them out when they load such a file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from .. import patches
from .._types import Optimizer, Variable
from .fit_window import FitWindow
from .scaler import DeviceScaler
from .weight_updates import WeightUpdates


def attach(
    optimizer: Optimizer, scaler: DeviceScaler, window: FitWindow | None, updates: WeightUpdates | None
) -> None:  # fmt: skip
    """Make an optimizer save the state of its session.

    Args:
        optimizer: a prepared one.
        scaler: its loss scale.
        window: its window in ``fit``; None where windows have one micro-batch or ``fit`` has none.
        updates: its rounded updates; None without.
    """
    saved = SavedState(scaler, window, updates)
    vars(optimizer)["_amp_saved_state"] = saved
    patches.track(optimizer, "_amp_saved_variables", list(saved.variables_by_name().values()))


class SavedState(tf.keras.layers.Layer):
    """What an optimizer saves of its session.

    Args:
        scaler: the session's loss scale.
        window: the optimizer's window in ``fit``; None without.
        updates: its rounded updates; None without.
    """

    def __init__(self, scaler: DeviceScaler, window: FitWindow | None, updates: WeightUpdates | None) -> None:
        super().__init__(name="unifiedamp_session", trainable=False, dtype="float32")
        self._scaler, self._window, self._updates = scaler, window, updates

    def variables_by_name(self) -> dict[str, Variable]:
        """Return name → variable of all that is saved."""
        window = {} if self._window is None else self._window.saved_variables()
        return {**self._scaler.saved_variables(), **window, **self._rounded()}

    def _rounded(self) -> dict[str, Variable]:
        return {} if self._updates is None else self._updates.saved_variables()

    def save_own_variables(self, store: Any) -> None:
        """Save the scale, and a window that is open."""
        saved = {**self._scaler.saved_variables(), **self._rounded()}
        if self._window is not None and self._window.is_open():
            saved |= self._window.saved_variables()
        for name, variable in saved.items():
            low = variable.dtype == tf.bfloat16  # which the files cannot hold
            store[name] = np.asarray((tf.cast(variable, tf.float32) if low else variable).numpy())

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved; a file of another origin has nothing, and leaves the session as it is."""
        names = set(store.keys())
        if not names:
            return
        for name, variable in self.variables_by_name().items():
            if name in names:
                variable.assign(tf.cast(np.asarray(store[name]), variable.dtype))
        self._scaler.clamp()
        if self._window is not None:
            self._window.loaded(names)
