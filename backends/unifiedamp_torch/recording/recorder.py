"""The role that records each layer's numbers on some steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from unifiedamp.backend import Recorder, SessionSpec, recording

from ..distributed.messages import StoreMessages, store_messages
from ..models import epsilons
from ..models.weights import TorchWeights
from ..training.step_context import StepContext
from .compiled_layers import CompiledLayers
from .notes import PackedNotes
from .reductions import ready
from .states import refuse_sharded
from .step_recorder import StepRecorder


class TorchRecorder(Recorder):
    """Records with forward hooks, also in captured steps: those that are recorded have a separate CUDA graph. What
    Inductor compiles calls no hooks: in mode "max" it is compiled once more with them; otherwise, and for sketches, a
    step whose layers are recorded runs uncompiled.

    Args:
        device: the session's.
        spec: the session's.
        steps: what the session's roles share of its steps.
    """

    means = (
        "forward hooks; captured steps have a second graph, which records; of what Inductor compiles, recorded layers "
        "(activations=True) are compiled in with compile='max', and run uncompiled otherwise and with compare=True"
    )

    compares = records_states = True
    UNTRACED = ("begin", "note_gradients", "end")
    """Methods that run uncompiled inside compiled steps."""

    def __init__(self, device: torch.device, spec: SessionSpec, steps: StepContext) -> None:
        self._device, self._spec, self._steps = device, spec, steps
        self._step: StepRecorder | None = None
        self._messages: StoreMessages | None = None
        self._before: dict[str, Any] = {}
        self._states: recording.States = {}
        self._compiled: CompiledLayers | None = None

    def records_layers(self) -> bool:
        """Return whether the activations of this step are being recorded."""
        return self._step is not None and self._step.activations

    def traces_layers(self) -> bool:
        return self._step is not None and self._step.can_be_traced()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        assert self._step is not None
        layers = self._step.layers
        if self._compiled is None or self._compiled.layers != layers:
            self._compiled = CompiledLayers(layers)
        with self._step.traced(self._compiled):
            yield

    # -- captured calls, see ``compiling.recorded_calls.CallRecorder`` -------------------------------------------------

    def form(self) -> Hashable:
        return None if self._step is None else self._step.form

    @contextlib.contextmanager
    def capturing(self) -> Iterator[Callable[[], PackedNotes | None]]:
        assert self._step is not None
        ready(self._device)
        with self._step.capturing() as packed:
            yield lambda: packed(self._device)

    def before_replay(self) -> None:
        if self._step is not None and self._step.compare:
            self._before = self.weights()  # the loop may have written to them

    def take(self, packed: PackedNotes) -> None:
        assert self._step is not None
        self._step.take(packed, self._device)

    # -- the role ----------------------------------------------------------------------------------------------------

    def begin(self, activations: bool, compare: bool = False) -> None:
        rank = None if self._messages is None else self._messages.rank
        self._step = StepRecorder(self._steps.prepared.models, activations, rank, compare)
        self._before = {}
        self._steps.loss.wanted = True

    def note_gradients(self, optimizer: torch.optim.Optimizer) -> Sequence[str]:
        assert self._step is not None
        self._step.before_step(optimizer)
        scaler = self._steps.scaler
        scale = None if scaler is None else scaler.scale_tensor
        return self._step.gradients(self._steps.prepared.gradients(optimizer), scale, self._steps.loss.value)

    def end(self) -> recording.RecordedStep:
        step, self._step = self._step, None
        self._steps.loss.wanted = self._steps.scaler is not None
        if step is None:
            return recording.RecordedStep()
        step.stop()
        seen, self._states = step.read(self._device)
        return replace(seen, weights=self._before)

    def weights(self) -> dict[str, Any]:
        prepared = self._steps.prepared
        reader = TorchWeights(prepared.masters)
        found = [reader.read(model) for model in prepared.models]
        return {
            name if not index else f"model{index}.{name}": array
            for index, arrays in enumerate(found)
            for name, array in arrays.items()
        }

    def keep_weights(self) -> None:
        """Count the states of this step, from copies of the weights that are made before each optimizer's step."""
        if self._step is not None:
            self._step.record_states(self._steps.prepared)

    def states(self) -> recording.States:
        refuse_sharded(self._steps.prepared)
        found, self._states = self._states, {}
        return found

    def messages(self) -> StoreMessages | None:
        self._messages = store_messages(self._steps.ranks)
        return self._messages

    def epsilons(self) -> list[recording.Epsilon]:
        prepared = self._steps.prepared
        return list(epsilons.epsilons(prepared.models, prepared.optimizers, self._spec.policy))
