"""What Python holds between steps and a CUDA graph depends on: gradients, findings, settings.

A graph reads and writes fixed addresses. It may be replayed only while the tensors that it reads are still the ones it
was captured with, and after a replay Python must hold what it held when the capture ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..training.gradients import local_part, parameters
from ..training.prepared import PreparedObjects


def fixed_by_capture(prepared: PreparedObjects) -> Hashable:
    """Return everything that a capture fixes: where parameters are, which train, modes, optimizers' settings.

    The learning rate is not included: a graph reads it from the device (see ``DeviceLearningRates``).
    """
    params = [param for optimizer in prepared.optimizers for param in parameters(optimizer)]
    of_models = [prepared.masters.model_param(param) for param in params]
    return (
        [local_part(param).data_ptr() for param in params],
        [local_part(param).data_ptr() for param in of_models],
        [param.requires_grad for param in of_models],
        [model.training for model in prepared.models],
        [(id(each.state), *[_settings(group) for group in each.param_groups]) for each in prepared.optimizers],
    )


def _settings(group: dict[str, Any]) -> list[Any]:
    return [
        id(value) if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name not in ("params", "lr", "initial_lr")
    ]


@dataclass(frozen=True)
class CaptureState:
    """Gradients, findings and the order of calls at one moment; two are equal when they hold the same tensors.

    Attributes:
        gradients: of all parameters, in order.
        findings: what was found in gradients of this iteration, by optimizer.
        order: a snapshot of the order of calls.
        pending: the optimizers that scaled losses are pending for.
        conditions: those of ``amp.skip_if`` that no step has taken, by optimizer.
        window: which weights were cast to float8 in this accumulation window.
    """

    gradients: Sequence[torch.Tensor | None]
    findings: Mapping[int, Mapping[str, Any]]
    order: tuple[Any, ...]
    pending: Mapping[int, bool] = field(default_factory=dict)
    conditions: Mapping[int, bool | torch.Tensor] = field(default_factory=dict)
    window: tuple[bool, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CaptureState) or (self.order, self.window) != (other.order, other.window):
            return False
        if self.findings.keys() != other.findings.keys() or self.conditions.keys() != other.conditions.keys():
            return False
        if any(each is not other.conditions[key] for key, each in self.conditions.items()):
            return False
        if any(each.get("found") is not other.findings[key].get("found") for key, each in self.findings.items()):
            return False
        return all(a is b for a, b in zip(self.gradients, other.gradients, strict=True))
