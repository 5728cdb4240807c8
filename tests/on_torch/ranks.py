"""Functions run by several processes, joined by gloo or NCCL, within a time limit."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

SECONDS = 180
"""How long all processes together may take."""


def run_ranks(function: Callable[..., Any], *args: Any, count: int = 2, backend: str = "gloo") -> list[Any]:
    """Return what ``function(rank, *args)`` returned on each rank; a rank that failed returns its traceback."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unifiedamp_torch.backend"])
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, count, folder, queue, function, args, backend), daemon=True)
            for rank in range(count)
        ]
        for process in ranks:
            process.start()
        try:
            answers = dict(queue.get(timeout=SECONDS) for _ in ranks)
        finally:
            for process in ranks:
                process.join(20)
                if process.is_alive():
                    process.kill()
    return [answers[rank] for rank in range(count)]


def _rank(
    rank: int, count: int, folder: str, queue: Any, function: Callable[..., Any], args: tuple[Any, ...], backend: str
) -> None:
    try:
        import torch
        import torch.distributed as dist

        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        queue.put((rank, function(rank, *args)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        queue.put((rank, traceback.format_exc()))


def checked(answers: list[Any]) -> list[Any]:
    """Return the answers of all ranks; fail where one raised."""
    for answer in answers:
        assert not isinstance(answer, str), answer
    return answers
