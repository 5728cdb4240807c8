"""The role that records each layer's numbers on some steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unifiedamp.backend import Policy, Recorder, errors, recording

from ..distributed.messages import StoreMessages, store_messages
from ..distributed.wrapped import sharded
from ..models import epsilons
from ..models.weights import TorchWeights
from ..training.step_context import StepContext
from .step_recorder import StepRecorder


class TorchRecorder(Recorder):
    """Records with forward hooks; compiled code runs uncompiled on recorded steps, since a graph holds no hooks.

    Args:
        device: the session's.
        policy: the session's.
        steps: what the session's roles share of its steps.
    """

    means = "forward hooks; on recorded steps, what is compiled runs uncompiled"

    compares = runs_uncompiled = True
    UNTRACED = ("begin", "note_gradients", "end")
    """Methods that run uncompiled inside compiled steps."""

    def __init__(self, device: torch.device, policy: Policy, steps: StepContext) -> None:
        self._device, self._policy, self._steps = device, policy, steps
        self._step: StepRecorder | None = None
        self._messages: StoreMessages | None = None

    def status(self) -> tuple[bool, bool]:
        """Return whether this step is being recorded, and whether its activations are."""
        step = self._step
        return step is not None, step is not None and step.activations

    def begin(self, activations: bool, compare: bool = False) -> None:
        rank = None if self._messages is None else self._messages.rank
        self._step = StepRecorder(self._steps.prepared.models, activations, rank, compare)
        self._steps.loss.wanted = True

    def note_gradients(self, optimizer: torch.optim.Optimizer) -> Sequence[str]:
        assert self._step is not None
        scaler = self._steps.scaler
        scale = None if scaler is None else scaler.scale_tensor
        return self._step.gradients(self._steps.prepared.gradients(optimizer), scale, self._steps.loss.value)

    def end(self) -> recording.RecordedStep:
        step, self._step = self._step, None
        self._steps.loss.wanted = self._steps.scaler is not None
        if step is None:
            return recording.RecordedStep()
        step.stop()
        return step.read(self._device)

    def weights(self) -> dict[str, Any]:
        prepared = self._steps.prepared
        if sharded(prepared.models):
            raise errors.UnsupportedError(
                "amp.record(compare=True): fully_shard divides the weights between ranks, and reading whole ones at a "
                "recorded step would be a collective; record a run of DistributedDataParallel or of one process"
            )
        reader = TorchWeights(prepared.masters)
        found = [reader.read(model) for model in prepared.models]
        return {
            name if not index else f"model{index}.{name}": array
            for index, arrays in enumerate(found)
            for name, array in arrays.items()
        }

    def messages(self) -> StoreMessages | None:
        self._messages = store_messages(self._steps.ranks)
        return self._messages

    def epsilons(self) -> list[recording.Epsilon]:
        prepared = self._steps.prepared
        return list(epsilons.epsilons(prepared.models, prepared.optimizers, self._policy))
