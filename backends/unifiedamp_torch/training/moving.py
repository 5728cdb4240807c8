"""Moving float32 averages towards parameters: on the host's decision, or in one kernel that skips by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from unifiedamp.backend import ema_weight
from unifiedamp.backend.ema import WARMUP_OFFSET

from ..device.kinds import traits
from .scale_state import Found


class Decay(NamedTuple):
    """How much of an average each step keeps, see ``ema_weight``."""

    decay: float
    warmup: bool


class Group(NamedTuple):
    """Real dense tensors of one device: averages, and the float32 parameters that they move towards."""

    averages: list[torch.Tensor]
    params: list[torch.Tensor]


class Mover(Protocol):
    """Counts applied steps, and moves averages by them."""

    def move(self, groups: Sequence[Group], found: Found | None) -> None:
        """Move averages unless ``found`` holds something; None for a step that was not checked, and applied."""

    def read(self) -> int:
        """Return how many applied steps it moved averages by; may wait for the device."""

    def write(self, updates: int) -> None:
        """Set what :meth:`read` returns."""


class HostMover:
    """Where reading the device waits for nothing.

    Args:
        decay: the average's.
    """

    def __init__(self, decay: Decay) -> None:
        self._decay, self._updates = decay, 0

    def move(self, groups: Sequence[Group], found: Found | None) -> None:
        if found is not None and found.skipped.item():
            return
        weight = ema_weight(*self._decay, self._updates + 1)
        for averages, params in groups:
            torch._foreach_lerp_(averages, params, weight)
        self._updates += 1

    def read(self) -> int:
        return self._updates

    def write(self, updates: int) -> None:
        self._updates = updates


class DeviceMover:
    """No method but :meth:`read` waits for the device, and all can be captured.

    Args:
        decay: the average's.
        device: the session's.
    """

    def __init__(self, decay: Decay, device: torch.device) -> None:
        self._decay = decay
        # Attempted and skipped steps, side by side, so that one addition counts a step.
        self._counts = torch.zeros(2, dtype=traits(device).wide_dtype, device=device)
        self._applied = torch.tensor([1.0, 0.0], device=device)
        self._nothing = torch.zeros((), device=device)
        self._constant = torch.tensor(ema_weight(decay.decay, False, 0), dtype=torch.float32, device=device)

    def move(self, groups: Sequence[Group], found: Found | None) -> None:
        self._counts.add_(self._applied if found is None else found.counted)
        weight, inf = self._weight(), self._nothing if found is None else found.skipped
        for averages, params in groups:
            device = averages[0].device
            move = _in_kernel if traits(device).fused_sgd else _by_selection
            move(averages, params, weight.to(device, non_blocking=True), inf.to(device, non_blocking=True))

    def _weight(self) -> torch.Tensor:
        if not self._decay.warmup:
            return self._constant
        n = self._counts[0] - self._counts[1]
        return torch.maximum(((WARMUP_OFFSET - 1.0) / (WARMUP_OFFSET + n)).float(), self._constant)

    def read(self) -> int:
        attempted, skipped = self._counts.tolist()
        return int(attempted - skipped)

    def write(self, updates: int) -> None:
        self._counts.copy_(torch.tensor([float(updates), 0.0], dtype=self._counts.dtype))


def _in_kernel(
    averages: list[torch.Tensor], params: list[torch.Tensor], weight: torch.Tensor, found_inf: torch.Tensor
) -> None:
    """Run ``average -= weight * (average - param)``, which is a step of SGD with the gradient ``-param``, weight decay
    1 and learning rate ``weight``: torch's fused kernel of it does nothing where ``found_inf`` is 1.
    """
    torch._fused_sgd_(
        averages, params, [], weight_decay=1.0, momentum=0.0, lr=weight, dampening=0.0, nesterov=False, maximize=True,
        is_first_step=False, grad_scale=None, found_inf=found_inf,
    )  # fmt: skip


def _by_selection(
    averages: list[torch.Tensor], params: list[torch.Tensor], weight: torch.Tensor, found_inf: torch.Tensor
) -> None:
    """Select between old and new, element by element: a factor of 0 would make nan of a weight that is not finite."""
    moved = torch._foreach_sub(params, averages)
    torch._foreach_mul_(moved, weight)
    torch._foreach_add_(moved, averages)
    skipped = found_inf.bool()
    torch._foreach_copy_(averages, [torch.where(skipped, *pair) for pair in zip(averages, moved, strict=True)])
