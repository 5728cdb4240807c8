"""Learning rates on the device, where a captured or compiled step reads them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, TypeAlias

import torch

from ..device.fused_optimizers import why_not_fused
from ..device.kinds import traits
from ..device.placement import steps_to_device
from ..training import compiled_update

Optimizer = torch.optim.Optimizer
Kept: TypeAlias = list[tuple[dict[str, Any], dict[str, Any]]]
"""Parameter groups, each with the settings to restore."""

_INSTALLED = ("lr", "capturable", "foreach", "fused")


class DeviceLearningRates:
    """Learning rates as device scalars, so that a schedule can change them between replays.

    Args:
        device: where the session's parameters are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[int, int], tuple[dict[str, Any], torch.Tensor, float]] = {}

    def install(
        self,
        optimizers: Sequence[Optimizer],
        compiled: bool,
        kept: Kept | None = None,
        sparse: Container[int] = (),
    ) -> Kept:
        """Make optimizers read learning rates from the device, and pass their check for captures.

        Args:
            optimizers: the session's.
            compiled: set also what a compiled step needs, or the fused kernel in place of one.
            kept: what :meth:`restore` needs is added here, so that it exists after an interruption too.
            sparse: ids of the parameters that get sparse gradients.

        Returns:
            The same list.
        """
        kept = [] if kept is None else kept
        for optimizer in optimizers:
            fits = compiled and compiled_update.compiles(optimizer)
            fuses = compiled and not fits and compiled_update.traceable(optimizer)
            fuses = fuses and not why_not_fused(optimizer, sparse)
            if fuses:
                steps_to_device(optimizer)
            for index, group in enumerate(optimizer.param_groups):
                kept.append((group, {name: group[name] for name in _INSTALLED if name in group}))
                if not _on_device(group["lr"]):
                    group["lr"] = self._tensor(id(optimizer), index, group)
                if fits or fuses:
                    group.update(compiled_update.settings(group, fits))
                elif group.get("fused") and "capturable" in group:
                    group["capturable"] = True
        return kept

    def _tensor(self, optimizer: int, index: int, group: dict[str, Any]) -> torch.Tensor:
        known = self._known.get((optimizer, index))
        if known is None or known[0] is not group:
            rate = float(group["lr"])
            known = self._known[optimizer, index] = (group, torch.tensor(rate, device=self._device), rate)
        return known[1]

    @staticmethod
    def restore(kept: Kept) -> None:
        """Undo :meth:`install`."""
        for group, values in kept:
            group.update(values)

    def refresh(self) -> None:
        """Update the learning rates on the device; asks nothing of the device where none has changed."""
        for key, (group, tensor, last) in self._known.items():
            rate = group["lr"]
            if rate != last:
                tensor.fill_(rate)
                self._known[key] = (group, tensor, float(rate))


def _on_device(rate: Any) -> bool:
    return isinstance(rate, torch.Tensor) and traits(rate.device).asynchronous
