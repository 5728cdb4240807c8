"""One step on several ranks by the roles alone, for the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from unifiedamp.backend import LossScale, Policy, SessionSpec

from ..backend import TorchBackend
from .ranks import processes


def step_on_ranks(
    gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None = None
) -> list[tuple[list[float], int]]:
    """Return each rank's parameters and skipped steps after a step with these gradients; see ``Harness.device_run``.

    Args:
        gradients: the true gradients on each rank; they are not summed.
        loss_scale: the session's.
        max_norm: clip the gradients to this norm; None leaves them.
    """
    answers = processes(len(gradients)).run(_step, list(gradients), loss_scale, max_norm)
    return [answer for (answer,) in answers]


def _step(
    rank: int, _count: int, gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None
) -> Iterator[tuple[list[float], int]]:
    backend = TorchBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    gradient = gradients[rank]
    model: Any = torch.nn.Linear(len(gradient), 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = backend.training
    training.prepare([model], [optimizer])
    training.backward(lambda: model(torch.tensor([gradient])).sum(), [optimizer])
    if max_norm is not None:
        training.unscale(optimizer)
        training.clip_grad_norm(optimizer, max_norm)
    training.step(optimizer, update_scale=True)
    yield model.weight[0].tolist(), training.read_state().skipped_steps
