"""Recording one step: the largest values at layers, and how gradients are distributed.

Modules have hooks while a step is recorded, and at no other time. Nothing is read from the device before
:meth:`StepRecorder.read`, which reads everything at once. A call that is captured in a CUDA graph notes tensors which
each replay of the graph fills.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import recording

from ..compiling.force_eager import ForceEager
from ..device.arrays import whole
from ..layer_paths import plain_name
from ..precision.casts import tensors
from ..training.gradients import is_sharded
from ..training.prepared import PreparedObjects
from .compiled_layers import CompiledLayers
from .local_gradients import LocalGradients
from .notes import LayerRecord, Notes, PackedNotes, merged
from .reductions import count, largest
from .sketches import sketch
from .states import StepStates


class StepRecorder:
    """Records since it was created.

    Args:
        models: the prepared models.
        activations: put hooks on their modules, and run compiled code uncompiled until :meth:`stop`.
        rank: of this process, if others train with it; its own gradients are then looked at before they are summed.
        compare: sketch activations and gradients.

    Attributes:
        activations: whether the forward pass is recorded.
        compare: see the argument.
        layers: path and module of what has hooks.
        states: whether weights and optimizer states are counted.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], activations: bool, rank: int | None = None, compare: bool = False
    ) -> None:
        self.activations = activations
        self._rank, self.compare = rank, compare
        self.states = False
        self._new_states: Callable[[], StepStates | None] = _nothing
        self._notes = Notes()
        self._packed: list[PackedNotes] = []
        self._local = LocalGradients(self._notes, compare) if rank is not None and activations else None
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}
        self._remove: list[Callable[[], None]] = []
        self._compiled: CompiledLayers | None = None
        self.layers = _layers(models) if activations else []
        self._wrapped = any(hasattr(each, "_orig_mod") for model in models for each in model.modules())
        self._stopped = not activations
        self._start()

    def _start(self) -> None:
        if self._stopped:
            return
        self._remove.append(functools.partial(ForceEager().__enter__().__exit__, None, None, None))
        for path, module in self.layers:
            self._hook(path, module)

    def _hook(self, path: str, module: torch.nn.Module) -> None:
        kind = type(module).__name__

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if in_training(module):
                self._record(path, kind, "input", (args, kwargs))
                if self._local is not None:
                    self._local.watch(path, module)

        def after(module: torch.nn.Module, _: Any, output: Any) -> None:
            if in_training(module):
                self._record(path, kind, "output", output)

        self._remove.append(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._remove.append(module.register_forward_hook(after).remove)

    def record_states(self, prepared: PreparedObjects) -> None:
        """Also count weights and optimizer states."""
        self.states, self._new_states = True, functools.partial(StepStates, prepared)
        self._notes.states = self._new_states()

    def stop(self) -> None:
        """Remove the hooks."""
        self._stopped = True
        self._remove_hooks()
        if self._local is not None:
            self._local.stop()
        self._seen.clear()

    def _remove_hooks(self) -> None:
        while self._remove:
            self._remove.pop()()

    # -- in compiled code --------------------------------------------------------------------------------------------

    def can_be_traced(self) -> bool:
        """Return whether :meth:`traced` records this step: a process alone, without sketches, and no model that the
        user compiled, whose code is used as it is.
        """
        return self.activations and not self.compare and self._local is None and not self._wrapped

    @contextlib.contextmanager
    def traced(self, layers: CompiledLayers) -> Iterator[None]:
        """Record by the hooks of ``layers``, of the same modules, which compiled code holds."""
        self._remove_hooks()
        layers.taken()
        self._compiled = layers
        try:
            with layers.installed():
                yield
        finally:
            self._take_compiled()
            self._compiled = None
            self._start()

    def _take_compiled(self) -> None:
        for row in () if self._compiled is None else self._compiled.taken():
            dtype = str(row.dtype).removeprefix("torch.")
            self._notes.activations.append(LayerRecord(row.layer, row.kind, row.place, dtype, row.largest, None))

    # -- recording --------------------------------------------------------------------------------------------------

    def _record(self, layer: str, kind: str, place: str, value: Any) -> None:
        for tensor in _recorded(value):
            known = self._known(tensor)
            if known is None:
                known = largest(tensor)
                self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, known)
            elif place == "input":
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            drawn = sketch(tensor, batch=True) if self.compare else None
            self._notes.activations.append(LayerRecord(layer, kind, place, dtype, known, drawn))

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._seen.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != tensor._version:
            return None
        return found[2]

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer's gradients are complete."""
        if self._notes.states is not None:
            self._notes.states.keep_weights(optimizer)

    def gradients(
        self, gradients: Mapping[str, torch.Tensor], scale: torch.Tensor | None, loss: torch.Tensor | None
    ) -> list[str]:
        """Count gradients; ``scale`` is their loss scale, if any."""
        notes, inverse = self._notes, None if scale is None else scale.reciprocal()
        notes.sharded |= any(map(is_sharded, gradients.values()))
        for scaled, true in count(list(gradients.values()), inverse):
            notes.scaled.append(scaled)
            notes.true.append(true)
        notes.names += gradients
        if self.compare:
            notes.sketches |= {name: sketch(whole(gradient)) for name, gradient in gradients.items()}
        if scale is not None:
            notes.scalars["scale"] = scale.clone()  # the step updates it in place
        if loss is not None:
            notes.scalars["loss"] = loss.detach()
        return list(gradients)

    # -- captured calls ----------------------------------------------------------------------------------------------

    @property
    def form(self) -> tuple[bool, bool, bool]:
        """Whether layers are recorded, sketches and states; captured calls of equal forms record the same."""
        return self.activations, self.compare, self.states

    @contextlib.contextmanager
    def capturing(self) -> Iterator[Callable[[torch.device], PackedNotes | None]]:
        """Note inside what a captured call computes, apart from what calls that ran have noted.

        Yields a function to call last in the capture, which returns what each replay fills.
        """
        outside, seen = self._notes, self._seen
        self._notes, self._seen = Notes(states=self._new_states()), {}
        if self._local is not None:
            self._local.notes = self._notes
        try:
            yield self._packed_now
        finally:
            self._notes, self._seen = outside, seen
            if self._local is not None:
                self._local.notes = outside

    def take(self, packed: PackedNotes, device: torch.device) -> None:
        """Take what a replay has filled, after what calls before it have noted."""
        self._pack(device)
        self._packed.append(packed.copied())

    def _packed_now(self, device: torch.device) -> PackedNotes | None:
        self._take_compiled()
        return self._notes.packed(device)

    def _pack(self, device: torch.device) -> None:
        self._take_compiled()
        packed, self._notes = self._notes.packed(device), Notes(states=self._new_states())
        if packed is not None:
            self._packed.append(packed)
        if self._local is not None:
            self._local.notes = self._notes

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, device: torch.device) -> tuple[recording.RecordedStep, recording.States]:
        """Return everything that was recorded; waits for the device."""
        self._pack(device)
        parts = [each.read() for each in self._packed]
        states = {name: each for part in parts for name, each in part.states.items()}
        return merged(parts, self._rank, self.compare), states


def _layers(models: Sequence[torch.nn.Module]) -> list[tuple[str, torch.nn.Module]]:
    """Return path and module of each layer; of what torch.compile wraps, the module inside."""
    return [
        (plain_name(path) if not index else f"model{index}.{plain_name(path)}".rstrip("."), module)
        for index, model in enumerate(models)
        for path, module in model.named_modules()
        if not hasattr(module, "_orig_mod")
    ]


def _nothing() -> None:
    """Count no states."""


def _recorded(value: Any) -> Iterator[torch.Tensor]:
    for tensor in tensors(value):
        if tensor.is_floating_point() and tensor.numel() and tensor.layout is torch.strided:
            yield tensor


def in_training(module: torch.nn.Module) -> bool:
    """Return whether this forward is recorded: not inference, and not one recomputed in the backward pass."""
    return (torch.is_grad_enabled() or module.training) and torch._C._current_graph_task_id() == -1
