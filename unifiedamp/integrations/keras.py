"""A callback for Keras's ``fit``: the loss scale in the logs, and the recorder.

Needs TensorFlow 2.15 (Keras 2) or newer (Keras 3 on its TensorFlow backend).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import tensorflow as tf

from ..errors import UnsupportedError, WrongObjectError
from ..recording.recorder import Recorder
from ..session import Amp


class AmpCallback(tf.keras.callbacks.Callback):
    """Shows a session in Keras's own training loop.

    While ``fit`` runs, the logs of each batch and epoch hold ``loss_scale`` (the scale of the next step) and
    ``skipped_steps`` (in this session so far), so that progress bars, ``History``, ``CSVLogger``, ``TensorBoard`` and
    ``EarlyStopping`` see them, wherever in the list of callbacks this one stands.

    With targets, ``fit`` is recorded as by ``amp.record``, and each epoch's logs are recorded too. Recording ends with
    ``fit``, also when an exception ends it.

    Args:
        amp: the session. Give ``amp.prepare`` the model that ``fit`` trains, and ``model.compile`` the prepared
            optimizer.
        *targets: of ``amp.record``: paths, sinks or functions; none records nothing.
        every: steps from one recorded step to the next; None records epochs alone.
        activations: also record layers' outputs.
        compare: also record what ``unifiedamp diff`` compares; see ``amp.record``.
        states: also count the values of weights and of optimizer states.

    Raises:
        WrongObjectError: ``amp`` is no session.
        UnsupportedError: it is another framework's.

    Example:
        model.fit(x, y, callbacks=[AmpCallback(amp, "run.jsonl"), keras.callbacks.CSVLogger("log.csv")])
    """

    def __init__(
        self, amp: Amp, *targets: Any, every: int | None = 100, activations: bool = True, compare: bool = False,
        states: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(amp, Amp):
            raise WrongObjectError(f"AmpCallback takes a session, ua.Amp(...), got {type(amp).__name__}")
        if not amp.backend.interop or not hasattr(amp.backend.interop, "fit_run"):
            raise UnsupportedError(
                f"AmpCallback follows Keras's fit on TensorFlow, and this session runs on {amp.backend.name!r}: make "
                "one with ua.Amp('tensorflow', ...)"
            )
        self.amp, self._targets = amp, targets
        self._start = functools.partial(
            amp.record, *targets, every=every, activations=activations, compare=compare, states=states
        )
        self._recorder: Recorder | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the session's numbers into the logs until ``fit`` ends.

        Raises:
            WrongObjectError: the model was not prepared.
        """
        run = self.amp.backend.interop.fit_run(self.model)
        if run is not None:
            run.logs_numbers = True
            run.on_error.append(self._end)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to record, once callbacks that restore a checkpoint have done so."""
        if self._targets and self._recorder is None:
            self._recorder = self._start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch's logs."""
        if self._recorder is not None:
            self._recorder.log(**{"epoch": epoch, **_scalars(logs or {})})

    def on_train_end(self, logs: Any = None) -> None:
        """End the recording."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop(error)


def _scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logs that are numbers; a metric may also give an array."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        with suppress(TypeError, ValueError):
            found[name] = float(value)
    return found
