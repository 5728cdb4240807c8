"""A function run by several processes at once, within a time limit."""

from __future__ import annotations

import faulthandler
import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

SECONDS = 180
"""How long all processes together may take."""


def run_processes(function: Callable[..., Any], *args: Any, count: int = 2) -> list[Any]:
    """Return what ``function(rank, *args)`` returned in each process; one that failed returns its traceback."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unifiedamp_torch.backend"])
    queue = context.Queue()
    processes = [
        context.Process(target=_answer, args=(rank, queue, function, args), daemon=True) for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        answers = dict(queue.get(timeout=SECONDS) for _ in processes)
    finally:
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()
    return [answers[rank] for rank in range(count)]


def _answer(rank: int, queue: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    faulthandler.dump_traceback_later(SECONDS - 30)  # of one that hangs
    try:
        queue.put((rank, function(rank, *args)))
    except BaseException:
        queue.put((rank, traceback.format_exc()))
