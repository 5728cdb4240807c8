"""Functions run by several processes, joined by gloo or NCCL, within a time limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from processes import run_processes


def run_ranks(
    function: Callable[..., Any], *args: Any, count: int = 2, backend: str = "gloo", gpus: bool | None = None
) -> list[Any]:
    """Return what ``function(rank, *args)`` returned on each rank; a rank that failed returns its traceback.

    ``gpus``: whether the ranks see the GPUs of the machine; None for those that communicate by NCCL.
    """
    gpus = backend == "nccl" if gpus is None else gpus
    with tempfile.TemporaryDirectory() as folder:
        return run_processes(_on_rank, count, folder, function, args, backend, gpus, count=count)


def _on_rank(
    rank: int, count: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...], backend: str, gpus: bool
) -> Any:
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # FSDP2's default mesh is on the GPU, where there is one
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    found = function(rank, *args)
    dist.barrier()
    dist.destroy_process_group()
    return found


def checked(answers: list[Any]) -> list[Any]:
    """Return the answers of all ranks; fail where one raised."""
    for answer in answers:
        assert not isinstance(answer, str), answer
    return answers
