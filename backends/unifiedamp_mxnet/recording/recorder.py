"""``MXNetRecorder``: the numbers of the steps that core records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import Recorder, SessionSpec, errors, recording

from .._types import Array, Block, Trainer
from ..device.numpy_semantics import in_numpy_semantics
from ..layer_paths import named_parameters
from ..models.epsilons import epsilons
from ..models.weights import MXNetWeights
from ..mxnet_api import NUMPY_API
from ..training.prepared_optimizers import PreparedOptimizers
from ..training.scaler import SessionScaler
from .states import kept_weights, states
from .step_recorder import StepRecorder


def _check_one_context(model: Block) -> None:
    contexts = max((len(param.list_data()) for _, param in named_parameters(model)), default=1)
    if contexts > 1:
        raise errors.UnsupportedError(
            f"amp.record(compare=True): the model is on {contexts} contexts, whose blocks see parts of a batch; record "
            "a run on one context"
        )


class MXNetRecorder(Recorder):
    """Records by hooks; hybridized blocks run another graph meanwhile, on MXNet 2 imperatively.

    Args:
        spec: the session's.
        scaler: the session's loss scale.
        models: the prepared models; the list may grow.
        optimizers: the session's Trainers.
    """

    compares = records_states = True
    runs_uncompiled = NUMPY_API

    def __init__(
        self, spec: SessionSpec, scaler: SessionScaler, models: Sequence[Block], optimizers: PreparedOptimizers
    ) -> None:
        self._spec, self._scaler, self._models, self._optimizers = spec, scaler, models, optimizers
        self._step: StepRecorder | None = None
        self._kept: dict[str, Array] = {}

    def begin(self, activations: bool, compare: bool = False) -> None:
        self._step = StepRecorder(self._models, activations, compare)

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

    @in_numpy_semantics
    def weights(self) -> Mapping[str, Any]:
        """See the role.

        Raises:
            UnsupportedError: the models are on several contexts.
        """
        reader = MXNetWeights(self._optimizers.masters_of, self._optimizers.load_masters)
        found: dict[str, Any] = {}
        for index, model in enumerate(self._models):
            prefix = f"model{index}." if index else ""
            found |= {prefix + name: array for name, array in reader.read(model).items()}
            _check_one_context(model)
        return found

    @in_numpy_semantics
    def keep_weights(self) -> None:
        self._kept = kept_weights(self._optimizers, self._optimizers.masters_of)

    @in_numpy_semantics
    def states(self) -> recording.States:
        kept, self._kept = self._kept, {}
        return states(self._optimizers, self._optimizers.masters_of, kept)

    def epsilons(self) -> list[recording.Epsilon]:
        trainers = [prepared.trainer for prepared in self._optimizers]
        return list(epsilons(self._models, trainers, self._spec.policy))
