"""What is noted of a recorded step: the largest values at layers, and how gradients are distributed.

Hooks stand on the modules while a step is recorded, and at no other time. Nothing is read from the device before
:meth:`Notes.read`, which reads all of it at once.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import recording

from ..compiling.force_eager import Uncompiled
from ..precision.casts import tensors
from ..training.prepare import plain_name
from .reductions import count, largest


class Noted(NamedTuple):
    """One activation before it is read."""

    layer: str
    kind: str
    place: str
    dtype: str
    largest: torch.Tensor


class Notes:
    """What was noted since recording began.

    Args:
        models: the prepared models.
        activations: put hooks on their modules, and have what is compiled run uncompiled until :meth:`stop`.

    Attributes:
        activations: whether the forward pass is looked at.
    """

    def __init__(self, models: Sequence[torch.nn.Module], activations: bool) -> None:
        self.activations = activations
        self._activations: list[Noted] = []
        self._names: list[str] = []
        self._scaled: list[torch.Tensor] = []
        self._true: list[torch.Tensor] = []
        self._scalars: dict[str, torch.Tensor] = {}
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}
        self._remove: list[Callable[[], None]] = []
        if activations:
            self._remove.append(functools.partial(Uncompiled().__enter__().__exit__, None, None, None))
        for index, model in enumerate(models if activations else ()):
            for path, module in model.named_modules():
                self._watch(plain_name(path) if not index else f"model{index}.{plain_name(path)}".rstrip("."), module)

    def _watch(self, path: str, module: torch.nn.Module) -> None:
        if hasattr(module, "_orig_mod"):
            return  # torch.compile's wrapper; the module inside is watched
        kind = type(module).__name__

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if _in_training(module):
                self._note(path, kind, "input", (args, kwargs))

        def after(module: torch.nn.Module, _: Any, output: Any) -> None:
            if _in_training(module):
                self._note(path, kind, "output", output)

        self._remove.append(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._remove.append(module.register_forward_hook(after).remove)

    def stop(self) -> None:
        """Take the hooks away."""
        while self._remove:
            self._remove.pop()()
        self._seen.clear()

    # -- noting --------------------------------------------------------------------------------------------------

    def _note(self, layer: str, kind: str, place: str, value: Any) -> None:
        for tensor in _looked_at(value):
            known = self._known(tensor)
            if known is None:
                known = largest(tensor)
                self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, known)
            elif place == "input":
                continue
            self._activations.append(Noted(layer, kind, place, str(tensor.dtype).removeprefix("torch."), known))

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._seen.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != tensor._version:
            return None
        return found[2]

    def gradients(
        self, gradients: Mapping[str, torch.Tensor], scale: torch.Tensor | None, loss: torch.Tensor | None
    ) -> list[str]:
        """Count gradients; ``scale`` is what they were multiplied by (None: nothing)."""
        inverse = None if scale is None else scale.reciprocal()
        for scaled, true in count(list(gradients.values()), inverse):
            self._scaled.append(scaled)
            self._true.append(true)
        self._names += gradients
        if scale is not None:
            self._scalars["scale"] = scale.clone()  # the step moves it in place
        if loss is not None:
            self._scalars["loss"] = loss.detach()
        return list(gradients)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, device: torch.device) -> recording.RecordedStep:
        """Return all that was noted; waits for the device once."""
        single = [*self._scalars.values(), *(noted.largest for noted in self._activations)]
        true = self._true if "scale" in self._scalars else []
        parts = [*(value.reshape(1) for value in single), *self._scaled, *true]
        if not parts:
            return recording.RecordedStep()
        wide = torch.float32 if device.type == "mps" else torch.float64
        numbers = torch.cat([part.to(device, wide, non_blocking=True) for part in parts]).cpu()
        left = iter(numbers[: len(single)].tolist())
        scalars = {name: next(left) for name in self._scalars}
        activations = [recording.Activation(*noted[:4], next(left)) for noted in self._activations]
        table = numbers[len(single) :].long().reshape(2 if true else 1, len(self._names), recording.BUCKETS).tolist()
        both = zip(self._names, table[0], table[-1], strict=True)
        gradients = {name: recording.GradientCounts(scaled, true) for name, scaled, true in both}
        return recording.RecordedStep(scalars.get("scale", 1.0), scalars.get("loss"), gradients, activations)


def _looked_at(value: Any) -> Iterator[torch.Tensor]:
    for tensor in tensors(value):
        if tensor.is_floating_point() and tensor.numel() and tensor.layout is torch.strided:
            yield tensor


def _in_training(module: torch.nn.Module) -> bool:
    """Tell inference, and a forward recomputed in the backward pass (checkpointing), from the forward to look at."""
    return (torch.is_grad_enabled() or module.training) and torch._C._current_graph_task_id() == -1
