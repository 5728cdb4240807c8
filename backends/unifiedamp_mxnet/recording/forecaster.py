"""The role that counts the values of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from unifiedamp.backend import Forecaster, ProductCounts, forecast

from .._types import Block, Trainer
from ..device.numpy_semantics import in_numpy_semantics
from ..training.prepared_optimizers import PreparedOptimizers
from ..training.scaler import SessionScaler
from .step_counter import StepCounter


class MXNetForecaster(Forecaster):
    """Counts in the calls of dense and convolutional layers, and in pairs of ``batch_dot``, on the host; hybridized
    blocks run imperatively meanwhile.

    Args:
        scaler: the session's loss scale.
        models: the prepared models; the list may grow.
        optimizers: the session's Trainers.
    """

    means = (
        "calls of dense and convolutional layers, batch_dot of attention; hybridized blocks run imperatively meanwhile"
    )

    scalings = tuple(forecast.SCALINGS)

    def __init__(self, scaler: SessionScaler, models: Sequence[Block], optimizers: PreparedOptimizers) -> None:
        self._scaler, self._models, self._optimizers = scaler, models, optimizers
        self._step: StepCounter | None = None

    def begin(self, scalings: Sequence[str] = ()) -> None:
        self.end()
        self._step = StepCounter(self._models, scalings)

    @in_numpy_semantics
    def note_gradients(self, optimizer: Trainer) -> None:
        """Count the gradients of weights, before they are summed over contexts, and of outputs so far."""
        assert self._step is not None
        self._step.add_gradients(self._optimizers[optimizer].buffer, self._scaler.state.scale)

    def end(self) -> Sequence[ProductCounts]:
        step, self._step = self._step, None
        if step is None:
            return []
        step.stop()
        return step.read()
