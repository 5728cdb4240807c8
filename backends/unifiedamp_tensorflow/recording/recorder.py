"""The numerics recorder's part of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unifiedamp.backend import Recorder, errors, recording

from .._types import Gradient, Optimizer, Tensor
from ..device.numerics import multiplied
from ..distributed.distributed import TensorFlowDistributed
from ..distributed.messages import worker_messages
from ..distributed.replica_programs import present_programs
from ..models.epsilons import epsilons
from ..models.weights import TensorFlowWeights
from ..training.gradient_buffer import GradientBuffer
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
        replicas = self._distributed.replicas
        first_rank = replicas.worker() * replicas.here_count if replicas.count > 1 else None
        self.current = StepRecorder(
            self._prepared.models, activations, self._distributed.replica, compare, self.weights, first_rank
        )

    def note_gradients(self, optimizer: Optimizer) -> Sequence[str]:
        assert self.current is not None
        check_here(self.current, "amp.record")
        buffer = self._prepared.buffer(optimizer, "record")
        scale = None if self._scaler is None else self._scaler.scale.read_value()
        self.current.gradients(buffer.collect("record"), scale, buffer.loss)
        self._note_sums(buffer, None)
        return list(buffer.present)

    def _note_sums(self, buffer: GradientBuffer, factor: Tensor | None) -> None:
        """Record what gradients become over replicas, multiplied by ``factor``; None for 1."""
        current = self.current
        if self._distributed.replicas.count < 2 or not isinstance(current, StepRecorder):
            return
        buffer.on_reduced = lambda sums: current.reduced(_multiplied(sums, factor))

    def replicas(self) -> int:
        return self._distributed.replicas.here_count

    def messages(self) -> recording.RankMessages | None:
        replicas = self._distributed.replicas
        workers = replicas.count // replicas.here_count
        return worker_messages(replicas.worker(), workers) if workers > 1 else None

    def note_fit(self, prepared: PreparedOptimizer, scaled: bool) -> None:
        """Note the gradients of a step of ``fit``; ``scaled``: they are multiplied by the scale."""
        if self.current is None or not self.current.here():
            return
        buffer, present = prepared.buffer(), prepared.buffer().present
        scale = None if self._scaler is None else self._scaler.scale.read_value()
        factor = None if scaled else scale
        self.current.gradients(_multiplied(present, factor), scale, buffer.loss)
        self._note_sums(buffer, factor)

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
        """
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


def check_here(current: StepRecorder | StepCounter, call: str) -> None:
    """Refuse gradients of a graph inside that which is recorded, whose tensors cannot be read outside of it.

    Raises:
        UnsupportedError: always there.
    """
    if present_programs() is None and not current.here():
        raise errors.UnsupportedError(
            f"{call}: amp.step runs in a loop, a branch or a tf.function, whose numbers cannot be read outside of it: "
            "call amp.step in the compiled step itself, or in Python"
        )


def _multiplied(gradients: Mapping[str, Gradient], factor: Tensor | None) -> Mapping[str, Gradient]:
    if factor is None:
        return gradients
    return {name: multiplied(gradient, factor) for name, gradient in gradients.items()}
