"""One step on two ranks, for the conformance kit: two processes joined by gloo."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from unifiedamp.backend import LossScale, Policy, SessionSpec

SECONDS = 120
"""The longest time that the processes may take."""


def run_on_ranks(
    gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None = None
) -> list[tuple[list[float], int]]:
    """Return each rank's parameters and skipped steps after a step with these gradients; see ``Harness.device_run``.

    Args:
        gradients: the true gradients on each rank; they are not summed.
        loss_scale: the session's.
        max_norm: clip the gradients to this norm; None leaves them.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = (folder, list(gradients), loss_scale, max_norm)
        processes: Any = mp  # torch leaves it untyped
        _join(processes.start_processes(_rank, args, len(gradients), join=False, start_method=_start_method()))
        return [torch.load(Path(folder, f"rank{rank}")) for rank in range(len(gradients))]


def _join(ranks: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not ranks.join(timeout=1.0):
        if time.monotonic() > deadline:
            for process in ranks.processes:
                process.kill()
            raise TimeoutError(f"a step on {len(ranks.processes)} ranks did not end within {SECONDS} seconds")


def _start_method() -> str:
    """Return "forkserver", from a process that has only imported torch, where the system has it."""
    if "forkserver" not in mp.get_all_start_methods():
        return "spawn"
    mp.get_context("forkserver").set_forkserver_preload(["unifiedamp_torch.backend", __name__])
    return "forkserver"


def _rank(
    rank: int, folder: str, gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(gradients))
    try:
        torch.save(_step(gradients[rank], loss_scale, max_norm), Path(folder, f"rank{rank}"))
        dist.barrier()  # gloo's threads wait forever for a peer that left first
    finally:
        dist.destroy_process_group()


def _step(gradient: Sequence[float], loss_scale: LossScale, max_norm: float | None) -> tuple[list[float], int]:
    from ..backend import TorchBackend

    backend = TorchBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
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
    return model.weight[0].tolist(), training.read_state().skipped_steps
