"""``MXNetRecorder``: the numbers of the steps that core records."""

from __future__ import annotations

from collections.abc import Sequence

from unifiedamp.backend import Policy, Recorder, recording

from .._types import Block, Trainer
from ..device.numpy_semantics import in_numpy_semantics
from ..models.epsilons import epsilons
from ..training.prepared_optimizers import PreparedOptimizers
from ..training.scaler import SessionScaler
from .step_recorder import StepRecorder


class MXNetRecorder(Recorder):
    """Records by hooks; hybridized blocks run another graph meanwhile, on MXNet 2 imperatively.

    Args:
        policy: the session's.
        scaler: the session's loss scale.
        models: the prepared models; the list may grow.
        optimizers: the session's Trainers.
    """

    def __init__(
        self, policy: Policy, scaler: SessionScaler, models: Sequence[Block], optimizers: PreparedOptimizers
    ) -> None:
        self._policy, self._scaler, self._models, self._optimizers = policy, scaler, models, optimizers
        self._step: StepRecorder | None = None

    def begin(self, activations: bool, compare: bool = False) -> None:
        self._step = StepRecorder(self._models, activations)

    @in_numpy_semantics
    def note_gradients(self, optimizer: Trainer) -> Sequence[str]:
        """See the role; on several contexts, the values of all of them are counted, before they are summed."""
        assert self._step is not None
        return self._step.add_gradients(self._optimizers[optimizer].buffer, self._scaler.state.scale)

    @in_numpy_semantics
    def end(self) -> recording.RecordedStep:
        step, self._step = self._step, None
        if step is None:
            return recording.RecordedStep()
        step.stop()
        return step.read()

    def epsilons(self) -> list[recording.Epsilon]:
        trainers = [prepared.trainer for prepared in self._optimizers]
        return list(epsilons(self._models, trainers, self._policy))
