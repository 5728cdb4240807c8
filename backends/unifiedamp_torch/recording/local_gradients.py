"""Gradients as each rank's backward pass makes them, before ranks sum them: whether they are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..training.gradients import dense
from .notes import Notes
from .reductions import largest
from .sketches import TensorSketch, sketch


class LocalGradients:
    """Looks at gradients while a step is recorded.

    A hook on a parameter runs before its gradient is accumulated, and so before ``DistributedDataParallel`` or
    ``fully_shard`` reduce it. ``fully_shard`` gives a module other parameters while it runs: they are hooked there.

    Args:
        notes: where to note them.
        compare: sketch them too.

    Attributes:
        notes: see the argument; of several gradients of a parameter, the largest value and the sketch of the sum.
    """

    def __init__(self, notes: Notes, compare: bool) -> None:
        self.notes, self._compare = notes, compare
        self._hooked: dict[int, Any] = {}

    def watch(self, path: str, module: torch.nn.Module) -> None:
        """Hook the parameters that a module has now; ``path`` is the module's."""
        for name, param in module.named_parameters(recurse=False):
            if param.requires_grad and param.is_leaf and id(param) not in self._hooked:
                full = f"{path}.{name}".lstrip(".")
                handle: Any = param.register_hook(self._looker(full))  # type: ignore[no-untyped-call]  # untyped in torch
                self._hooked[id(param)] = handle

    def _looker(self, name: str) -> Callable[[torch.Tensor], None]:
        def look(gradient: torch.Tensor) -> None:
            values = dense(gradient.detach())
            if values.numel():
                found = largest(values)
                before = self.notes.local.get(name)
                self.notes.local[name] = found if before is None else torch.maximum(before, found)  # keeps nan
            if self._compare:
                self._add(name, sketch(gradient, ordered=False))

        return look

    def _add(self, name: str, drawn: TensorSketch) -> None:
        before = self.notes.local_sketches.get(name)
        self.notes.local_sketches[name] = drawn if before is None else drawn.plus(before)

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()
