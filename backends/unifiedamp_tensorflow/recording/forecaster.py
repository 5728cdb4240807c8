"""The role that counts the values of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from unifiedamp.backend import Forecaster, ProductCounts, forecast

from .._types import Optimizer, Tensor, Variable
from ..training.prepared_objects import PreparedObjects
from ..training.scaler import DeviceScaler
from .recorder import TensorFlowRecorder, check_here
from .step_counter import StepCounter


class TensorFlowForecaster(Forecaster):
    """Counts in a counting subclass of dense and convolutional layers; compiled steps run a separate trace meanwhile.

    Args:
        prepared: the session's models and optimizers.
        recorder: its recorder, in whose place a step is counted.
        scaler: its loss scale; None without one.
    """

    means = "dense and convolutional layers, attention; counted steps of compiled loops run a separate trace"

    scalings = tuple(forecast.SCALINGS)

    def __init__(self, prepared: PreparedObjects, recorder: TensorFlowRecorder, scaler: DeviceScaler | None) -> None:
        self._prepared, self._recorder, self._scaler = prepared, recorder, scaler

    def begin(self, scalings: Sequence[str] = ()) -> None:
        self.end()
        self._recorder.current = StepCounter(self._prepared.models, self._name_of, self._inverse, scalings)

    def _name_of(self, variable: Variable) -> str | None:
        names = (prepared.params.name_of(variable) for prepared in self._prepared.optimizers)
        return next((name for name in names if name is not None), None)

    def _inverse(self) -> Tensor | None:
        return None if self._scaler is None else tf.math.reciprocal(self._scaler.scale.read_value())

    def note_gradients(self, optimizer: Optimizer) -> None:
        """Count the gradients of kernels, those of all replicas together."""
        counter = self._recorder.current
        assert isinstance(counter, StepCounter)
        check_here(counter, "amp.forecast")
        scale = None if self._scaler is None else self._scaler.scale.read_value()
        present = self._prepared.buffer(optimizer, "forecast").collect("forecast")
        counter.gradients(present, scale, None, self._prepared.find(optimizer).params.name_of)

    def end(self) -> Sequence[ProductCounts]:
        current = self._recorder.current
        if not isinstance(current, StepCounter):
            return []
        self._recorder.current = None
        current.stop()
        return current.read()
