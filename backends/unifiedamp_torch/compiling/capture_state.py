"""What Python holds between steps and a replayed CUDA graph takes for granted: gradients, findings, settings.

A graph reads and writes fixed addresses. It may be replayed only where the tensors that it reads are still the ones it
was captured with, and after a replay Python must hold what it held when the capture ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..training import update
from ..training.gradients import parameters
from ..training.master_weights import Masters

Optimizer = torch.optim.Optimizer


def fixed(models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer], masters: Masters) -> Hashable:
    """Return everything that a capture fixes: where parameters lie, which train, modes, optimizers' settings.

    The learning rate is not among it: a graph reads it from the device (see :class:`Rates`).
    """
    params = [param for optimizer in optimizers for param in parameters(optimizer)]
    of_models = [masters.low(param) for param in params]
    return (
        [param.data_ptr() for param in params],
        [param.data_ptr() for param in of_models],
        [param.requires_grad for param in of_models],
        [model.training for model in models],
        [(id(optimizer.state), *[_settings(group) for group in optimizer.param_groups]) for optimizer in optimizers],
    )


def _settings(group: dict[str, Any]) -> list[Any]:
    return [
        id(value) if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name not in ("params", "lr", "initial_lr")
    ]


@dataclass(frozen=True)
class Held:
    """Gradients, findings and the order of calls at one moment; two are equal when they hold the same tensors.

    Attributes:
        gradients: of all parameters, in order.
        records: the scaler's records, by optimizer.
        window: a snapshot of the order of calls.
        pending: the optimizers that scaled losses are pending for.
    """

    gradients: Sequence[torch.Tensor | None]
    records: Mapping[int, Mapping[str, Any]]
    window: Any
    pending: Mapping[int, bool] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held) or self.window != other.window or self.records.keys() != other.records.keys():
            return False
        if any(record.get("found") is not other.records[key].get("found") for key, record in self.records.items()):
            return False
        return all(a is b for a, b in zip(self.gradients, other.gradients, strict=True))


_LENT = ("lr", "capturable", "foreach", "fused")


class Rates:
    """Learning rates as device scalars, so that a schedule moves them between replays.

    Args:
        device: where the session's parameters are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[int, int], tuple[dict[str, Any], torch.Tensor, float]] = {}

    def lend(
        self,
        optimizers: Sequence[Optimizer],
        compiled: bool,
        kept: list[tuple[dict[str, Any], dict[str, Any]]] | None = None,
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Have optimizers read learning rates from the device, and pass their check for captures.

        Args:
            optimizers: the session's.
            compiled: set also what a compiled step wants.
            kept: what :meth:`give_back` puts back is added here, so that it is there after an interruption too.

        Returns:
            The same list.
        """
        kept = [] if kept is None else kept
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups):
                kept.append((group, {name: group[name] for name in _LENT if name in group}))
                if not _on_device(group["lr"]):
                    group["lr"] = self._tensor(id(optimizer), index, group)
                if compiled and update.traceable(optimizer):
                    group.update(update.settings(group))
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
    def give_back(kept: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Undo :meth:`lend`."""
        for group, values in kept:
            group.update(values)

    def refresh(self) -> None:
        """Bring the device's learning rates up to date; asks nothing of the device where none has moved."""
        for key, (group, tensor, last) in self._known.items():
            rate = group["lr"]
            if rate != last:
                tensor.fill_(rate)
                self._known[key] = (group, tensor, float(rate))


def _on_device(rate: Any) -> bool:
    return isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
