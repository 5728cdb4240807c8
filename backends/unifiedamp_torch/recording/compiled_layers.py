"""Layers of a step that Inductor compiles: hooks that dynamo traces, so that largest values are compiled with the step.

Hooks are the same objects in each recorded step, and the list they append to is empty when a step begins: dynamo guards
on both, and would compile anew. A forward pass that is recomputed in the backward pass is noted again, with the same
values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..precision.casts import tensors


class LayerRow(NamedTuple):
    """A tensor that went into a layer or came out of it, as ``notes.LayerRecord`` has it."""

    layer: str
    kind: str
    place: str
    dtype: torch.dtype
    largest: torch.Tensor


class CompiledLayers:
    """The hooks of some models' layers.

    Args:
        layers: path, and module.

    Attributes:
        layers: see the argument.
        rows: what was noted since :meth:`taken`.
    """

    def __init__(self, layers: Sequence[tuple[str, torch.nn.Module]]) -> None:
        self.layers, self.rows = layers, list[LayerRow]()
        self._seen: list[torch.Tensor] = []
        self._hooks = [(module, *self._hooks_of(path, type(module).__name__)) for path, module in layers]

    def _hooks_of(self, path: str, kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled() or module.training:
                self.note(path, kind, "input", (args, kwargs))

        def after(module: torch.nn.Module, _: Any, output: Any) -> None:
            if torch.is_grad_enabled() or module.training:
                self.note(path, kind, "output", output)

        return before, after

    def note(self, layer: str, kind: str, place: str, value: Any) -> None:
        """Note the tensors in a value; of inputs those that no layer has seen."""
        for tensor in tensors(value):
            if not (tensor.is_floating_point() and tensor.numel()) or tensor.layout is not torch.strided:
                continue
            if place == "input" and any(tensor is other for other in self._seen):
                continue
            self._seen.append(tensor)
            self.rows.append(LayerRow(layer, kind, place, tensor.dtype, _largest(tensor)))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Hold the hooks on their modules."""
        handles = [
            handle
            for module, before, after in self._hooks
            for handle in (
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after),
            )
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def taken(self) -> list[LayerRow]:
        """Return what was noted, and forget it."""
        rows = list(self.rows)
        self.rows.clear()
        self._seen.clear()
        return rows


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value, in operations that Inductor fuses; inf or nan where the tensor holds one."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        return tensor.abs().amax()
