"""``MXNetRecorder``: the numbers of the steps that core records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import Recorder, SessionSpec, recording

from .._types import Array, Block, Trainer
from ..device.numpy_semantics import in_numpy_semantics
from ..distributed.messages import WorkerMessages, store_of_workers
from ..distributed.plan import contexts_of
from ..distributed.workers import MESSAGES_KEY, WorkerNumbers
from ..models.epsilons import epsilons
from ..models.weights import MXNetWeights
from ..mxnet_api import NUMPY_API
from ..training.prepared_optimizers import PreparedOptimizers
from ..training.scaler import SessionScaler
from .states import kept_weights, states
from .step_recorder import StepRecorder


class MXNetRecorder(Recorder):
    """Records by hooks; hybridized blocks run another graph meanwhile, on MXNet 2 imperatively.

    Args:
        spec: the session's.
        scaler: the session's loss scale.
        models: the prepared models; the list may grow.
        optimizers: the session's Trainers.
    """

    compares = records_states = True
    reduction = "sum"
    runs_uncompiled = NUMPY_API

    def __init__(
        self, spec: SessionSpec, scaler: SessionScaler, models: Sequence[Block], optimizers: PreparedOptimizers
    ) -> None:
        self._spec, self._scaler, self._models, self._optimizers = spec, scaler, models, optimizers
        self._step: StepRecorder | None = None
        self._kept: dict[str, Array] = {}
        self._numbers: WorkerNumbers | None = None
        self._messages: WorkerMessages | None = None

    def begin(self, activations: bool, compare: bool = False) -> None:
        contexts, store = self._contexts(), self._workers()
        first_rank = None if store is None and len(contexts) < 2 else (store.rank if store else 0) * len(contexts)
        self._step = StepRecorder(self._models, contexts, activations, compare, first_rank)

    def _workers(self) -> Any:
        return store_of_workers(prepared.trainer for prepared in self._optimizers)

    def _contexts(self) -> list[str]:
        """Return the contexts that train together."""
        trainers = [prepared.trainer for prepared in self._optimizers]
        return list(dict.fromkeys(str(context) for trainer in trainers for context in contexts_of(trainer)))

    def replicas(self) -> int:
        return len(self._contexts())

    @in_numpy_semantics
    def messages(self) -> WorkerMessages | None:
        store, self._messages = self._workers(), None
        if store is None:
            return None
        if self._numbers is None:  # a key of the kvstore is made once
            self._numbers = WorkerNumbers(store, MESSAGES_KEY)
        self._messages = WorkerMessages(self._numbers, store.rank, store.num_workers)
        return self._messages

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
        if self._messages is not None:
            self._messages.all_record = step.on_all_workers()
        return step.read()

    @in_numpy_semantics
    def weights(self) -> Mapping[str, Any]:
        """See the role; of several contexts, whose weights are the same, those of the first."""
        reader = MXNetWeights(self._optimizers.masters_of, self._optimizers.load_masters)
        found: dict[str, Any] = {}
        for index, model in enumerate(self._models):
            prefix = f"model{index}." if index else ""
            found |= {prefix + name: array for name, array in reader.read(model).items()}
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
