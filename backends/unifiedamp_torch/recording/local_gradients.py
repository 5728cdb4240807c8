"""Gradients as each rank's backward pass makes them, before ranks sum them: whether they are finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..training.gradients import dense
from .reductions import largest
from .sketches import TensorSketch, sketch


class LocalGradients:
    """Looks at gradients while a step is recorded.

    A hook on a parameter runs before its gradient is accumulated, and so before ``DistributedDataParallel`` or
    ``fully_shard`` reduce it. ``fully_shard`` gives a module other parameters while it runs: they are hooked there.

    Args:
        compare: sketch them too.

    Attributes:
        sketches: parameter name → the sketch of the sum of its gradients so far.
    """

    def __init__(self, compare: bool) -> None:
        self._compare = compare
        self.sketches: dict[str, TensorSketch] = {}
        self._largest: dict[str, torch.Tensor] = {}
        self._hooked: dict[int, Any] = {}

    def watch(self, path: str, module: torch.nn.Module) -> None:
        """Hook the parameters that a module has now; ``path`` is the module's."""
        for name, param in module.named_parameters(recurse=False):
            if param.requires_grad and param.is_leaf and id(param) not in self._hooked:
                full = f"{path}.{name}".lstrip(".")
                handle: Any = param.register_hook(self._looker(full))  # type: ignore[no-untyped-call]
                self._hooked[id(param)] = handle

    def _looker(self, name: str) -> Callable[[torch.Tensor], None]:
        def look(gradient: torch.Tensor) -> None:
            values = dense(gradient.detach())
            if values.numel():
                found = largest(values)
                before = self._largest.get(name)
                self._largest[name] = found if before is None else torch.maximum(before, found)  # keeps nan
            if self._compare:
                self._add(name, sketch(gradient, ordered=False))

        return look

    def _add(self, name: str, drawn: TensorSketch) -> None:
        before = self.sketches.get(name)
        self.sketches[name] = drawn if before is None else drawn.plus(before)

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    @property
    def largest(self) -> Mapping[str, torch.Tensor]:
        """Parameter name → the largest absolute value of its gradients so far, on their device."""
        return self._largest
