"""Recording one step: the largest values at layers, and how gradients are distributed.

Modules have hooks while a step is recorded, and at no other time. Nothing is read from the device before
:meth:`StepRecorder.read`, which reads everything at once.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import recording

from ..compiling.force_eager import ForceEager
from ..device.kinds import traits
from ..layer_paths import plain_name
from ..precision.casts import tensors
from ..training.gradients import is_sharded
from .local_gradients import LocalGradients
from .reductions import count, largest
from .sketches import TensorSketch, sketch


class LayerRecord(NamedTuple):
    """One activation before it is read."""

    layer: str
    kind: str
    place: str
    dtype: str
    largest: torch.Tensor
    sketch: TensorSketch | None


class StepRecorder:
    """Records since it was created.

    Args:
        models: the prepared models.
        activations: put hooks on their modules, and run compiled code uncompiled until :meth:`stop`.
        rank: of this process, if others train with it; its own gradients are then looked at before they are summed.
        compare: sketch activations and gradients.

    Attributes:
        activations: whether the forward pass is recorded.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], activations: bool, rank: int | None = None, compare: bool = False
    ) -> None:
        self.activations = activations
        self._rank, self._sharded = rank, False
        self._local = LocalGradients(compare) if rank is not None and activations else None
        self._compare = compare
        self._sketches: dict[str, TensorSketch] = {}
        self._activations: list[LayerRecord] = []
        self._names: list[str] = []
        self._scaled: list[torch.Tensor] = []
        self._true: list[torch.Tensor] = []
        self._scalars: dict[str, torch.Tensor] = {}
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}
        self._remove: list[Callable[[], None]] = []
        if activations:
            self._remove.append(functools.partial(ForceEager().__enter__().__exit__, None, None, None))
        for index, model in enumerate(models if activations else ()):
            for path, module in model.named_modules():
                self._hook(plain_name(path) if not index else f"model{index}.{plain_name(path)}".rstrip("."), module)

    def _hook(self, path: str, module: torch.nn.Module) -> None:
        if hasattr(module, "_orig_mod"):
            return  # torch.compile's wrapper; the module inside is hooked
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

    def stop(self) -> None:
        """Remove the hooks."""
        while self._remove:
            self._remove.pop()()
        if self._local is not None:
            self._local.stop()
        self._seen.clear()

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
            drawn = sketch(tensor, batch=True) if self._compare else None
            self._activations.append(LayerRecord(layer, kind, place, dtype, known, drawn))

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._seen.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != tensor._version:
            return None
        return found[2]

    def gradients(
        self, gradients: Mapping[str, torch.Tensor], scale: torch.Tensor | None, loss: torch.Tensor | None
    ) -> list[str]:
        """Count gradients; ``scale`` is their loss scale, if any."""
        inverse = None if scale is None else scale.reciprocal()
        self._sharded |= any(map(is_sharded, gradients.values()))
        for scaled, true in count(list(gradients.values()), inverse):
            self._scaled.append(scaled)
            self._true.append(true)
        self._names += gradients
        if self._compare:
            self._sketches |= {name: sketch(gradient) for name, gradient in gradients.items()}
        if scale is not None:
            self._scalars["scale"] = scale.clone()  # the step updates it in place
        if loss is not None:
            self._scalars["loss"] = loss.detach()
        return list(gradients)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, device: torch.device) -> recording.RecordedStep:
        """Return everything that was recorded; waits for the device once."""
        local = {} if self._local is None else self._local.largest
        single = [*self._scalars.values(), *(each.largest for each in self._activations), *local.values()]
        true = self._true if "scale" in self._scalars else []
        drawn = self._drawn()
        parts = [*(value.reshape(1) for value in single), *(each.numbers for each in drawn), *self._scaled, *true]
        if not parts:
            return recording.RecordedStep()
        wide = traits(device).wide_dtype
        numbers = torch.cat([part.to(device, wide, non_blocking=True) for part in parts]).cpu()
        start = len(single) + sum(each.numbers.numel() for each in drawn)
        left = iter(numbers[:start].tolist())
        scalars = {name: next(left) for name in self._scalars}
        activations = [recording.Activation(*each[:4], next(left)) for each in self._activations]
        finite = {name: math.isfinite(next(left)) for name in local}
        sketches = self._read_sketches(left, scalars.get("scale", 1.0)) if self._compare else None
        table = numbers[start:].long().reshape(2 if true else 1, len(self._names), recording.BUCKETS).tolist()
        both = zip(self._names, table[0], table[-1], strict=True)
        gradients = {name: recording.GradientCounts(scaled, true) for name, scaled, true in both}
        own = [] if self._rank is None else [recording.LocalStep(self._rank, activations, finite)]
        scale, loss = scalars.get("scale", 1.0), scalars.get("loss")
        return recording.RecordedStep(scale, loss, gradients, activations, own, self._sharded, sketches)

    def _drawn(self) -> list[TensorSketch]:
        """Return all sketches, in the order in which they are read."""
        local = {} if self._local is None else self._local.sketches
        of_layers = [each.sketch for each in self._activations if each.sketch is not None]
        return [*of_layers, *self._sketches.values(), *local.values()]

    def _read_sketches(self, numbers: Iterator[float], scale: float) -> recording.StepSketches:
        local = {} if self._local is None else self._local.sketches
        return recording.StepSketches(
            [each.sketch.read(numbers) for each in self._activations if each.sketch is not None],
            {name: each.read(numbers, scale) for name, each in self._sketches.items()},
            {name: each.read(numbers, scale) for name, each in local.items()},
        )


def _recorded(value: Any) -> Iterator[torch.Tensor]:
    for tensor in tensors(value):
        if tensor.is_floating_point() and tensor.numel() and tensor.layout is torch.strided:
            yield tensor


def in_training(module: torch.nn.Module) -> bool:
    """Return whether this forward is recorded: not inference, and not one recomputed in the backward pass."""
    return (torch.is_grad_enabled() or module.training) and torch._C._current_graph_task_id() == -1
