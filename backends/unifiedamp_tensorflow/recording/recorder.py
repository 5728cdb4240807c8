"""The numerics recorder's part of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import Recorder, errors, recording

from .._types import Optimizer, Tensor
from ..device.numerics import multiplied
from ..distributed.distributed import TensorFlowDistributed
from ..models.epsilons import epsilons
from ..models.weights import TensorFlowWeights
from ..training.prepared_objects import PreparedObjects
from ..training.prepared_optimizer import PreparedOptimizer
from ..training.scaler import DeviceScaler
from .states import kept_weights, states
from .step_counter import StepCounter
from .step_recorder import StepRecorder


class TensorFlowRecorder(Recorder):
    """Records the steps of one session.

    Args:
        prepared: its models and optimizers.
        distributed: its replicas.
        scaler: its loss scale; None without one.

    Attributes:
        current: what records, or counts for a forecast; None outside such steps.
    """

    compares = records_states = True
    reduction = "sum"
    means = "recorded steps of compiled loops run a separate trace"

    def __init__(
        self, prepared: PreparedObjects, distributed: TensorFlowDistributed, scaler: DeviceScaler | None
    ) -> None:
        self._prepared, self._distributed, self._scaler = prepared, distributed, scaler
        self.current: StepRecorder | StepCounter | None = None
        self._kept: dict[str, Tensor] = {}

    def begin(self, activations: bool, compare: bool = False) -> None:
        """Record from here on; of several replicas, the largest values of any and the gradients of all together."""
        replica = self._distributed.replica
        self.current = StepRecorder(self._prepared.models, activations, replica, compare, self.weights)

    def note_gradients(self, optimizer: Optimizer) -> Sequence[str]:
        assert self.current is not None
        buffer = self._prepared.buffer(optimizer, "record")
        scale = None if self._scaler is None else self._scaler.scale.read_value()
        self.current.gradients(buffer.collect("record"), scale, buffer.loss)
        if self.replicas() > 1 and isinstance(self.current, StepRecorder):
            buffer.on_reduced = self.current.reduced
        return list(buffer.present)

    def replicas(self) -> int:
        return self._distributed.replicas.count

    def note_fit(self, prepared: PreparedOptimizer, scaled: bool) -> None:
        """Note the gradients of a step of ``fit``; ``scaled``: they are multiplied by the scale."""
        if self.current is None or not self.current.here():
            return
        buffer, present = prepared.buffer(), prepared.buffer().present
        scale = None if self._scaler is None else self._scaler.scale.read_value()
        if scale is not None and not scaled:
            present = {name: multiplied(gradient, scale) for name, gradient in present.items()}
        self.current.gradients(present, scale, buffer.loss)

    def end(self) -> recording.RecordedStep:
        current = self.current
        if not isinstance(current, StepRecorder):
            return recording.RecordedStep()
        self.current = None
        current.stop()
        return current.read()

    def weights(self) -> Mapping[str, Any]:
        """Return the weights by layer path and variable name; of several replicas, whose weights are the same, those of
        the first.

        Raises:
            UnsupportedError: the replicas are in several processes.
        """
        if self._distributed.replicas.over_workers():
            raise errors.UnsupportedError(
                "amp.record(compare=True): the workers of a MultiWorkerMirroredStrategy record their own steps, of "
                "parts of a batch; record a run on one worker, or without compare=True"
            )
        return TensorFlowWeights(self._prepared.true_weights, self._prepared.set_true_weights).read_models(
            self._prepared.models
        )

    def keep_weights(self) -> None:
        self._kept = kept_weights(self._prepared.optimizers)

    def states(self) -> recording.States:
        kept, self._kept = self._kept, {}
        return states(self._prepared.optimizers, kept)

    def epsilons(self) -> list[recording.Epsilon]:
        optimizers = [prepared.inner for prepared in self._prepared.optimizers]
        return list(epsilons(self._prepared.models, optimizers))
