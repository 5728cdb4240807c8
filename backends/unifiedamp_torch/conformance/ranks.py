"""Trains the kit's cases on several ranks: processes joined by gloo, on the CPU."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from unifiedamp.conformance.ranks import (
    LEARNING_RATE,
    Answers,
    Array,
    RankCase,
    RankProcesses,
    RankTrace,
    Rows,
    answers_of,
    owned,
    play_all,
)

from ..distributed import loaded
from .rank_models import RankModel, shared

LATE = ("torch.distributed.fsdp", "torch._dynamo")
"""What torch imports when it first wraps or trains a model of several ranks."""


def run_on_ranks(kind: str, count: int, form: str, options: Mapping[str, Any], cases: Sequence[RankCase]) -> Answers:
    """Train cases on ``count`` ranks; see ``Harness.run_ranks``.

    Args:
        kind: of ``KINDS``.
        count: how many processes.
        form: how steps run.
        options: the form's ``backend_options``.
        cases: what to train.
    """
    return answers_of(processes(count), train, cases, kind, form, dict(options))


@functools.cache
def processes(count: int) -> RankProcesses:
    """Return processes that are joined once, and train everything on this many ranks."""
    return joined_processes(count, join)


def joined_processes(count: int, setup: Callable[[int, int, str], None], **options: Any) -> RankProcesses:
    """Return new processes, forked from one that has only imported torch and what ranks use of it, where the system
    can.

    Args:
        count: how many.
        setup: :func:`join`, or what calls it.
        **options: of ``RankProcesses``.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return RankProcesses(count, "spawn", setup, **options)
    multiprocessing.set_forkserver_preload(["unifiedamp_torch.backend", *LATE, __name__])
    return RankProcesses(count, "forkserver", setup, **options)


def join(rank: int, count: int, folder: str) -> None:
    """Join the other processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)


def train(
    rank: int, count: int, cases: Sequence[RankCase], kind: str, form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on this rank; the program of each process."""
    side = TorchRank(rank, kind if count > 1 else "unwrapped", form, options)
    for case in cases:
        patience = loaded.PATIENCE
        try:
            if case.loads is not None:
                loaded.PATIENCE = timedelta(seconds=0.2)  # which a rank that loads alone waits in vain
            yield from play_all(side, [case], form, first=rank == 0)
        finally:
            loaded.PATIENCE = patience


class TorchRank:
    """One rank, which is one process.

    Args:
        rank: its number.
        kind, form, options: see :func:`run_on_ranks`.
    """

    def __init__(self, rank: int, kind: str, form: str, options: Mapping[str, Any]) -> None:
        self._rank, self._kind = rank, kind
        # There the kernel skips; torch's fused SGD takes no DTensors.
        self._fused = form == "eager-on-device" and kind in ("ddp", "unwrapped")
        self._options = options

    def options(self) -> Mapping[str, Any]:
        return {"backend": "torch", "device": "cpu", "backend_options": {"torch": dict(self._options)}}

    def make(self, case: RankCase) -> tuple[Any, Sequence[Any]]:
        inner = RankModel(case.weights)
        model = shared(self._kind, inner, case.leaves_out)
        make = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=case.momentum, fused=self._fused)
        return model, [
            make([inner.parts[i].get_parameter("weight") for i in params]) for params in owned(case.optimizers)
        ]

    def batch(self, ranks: Sequence[Rows]) -> Any:
        return [None if row is None else torch.from_numpy(row) for row in ranks[self._rank]]

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch)

    def spread(self, step: Any, compile: Callable[[Any], Any]) -> Any:
        return compile(step)

    def norms(self, returned: Sequence[Any], amp: Any) -> list[tuple[float, ...]]:
        return [tuple(float(norm) for norm in returned)]

    def weights(self, model: Any) -> list[tuple[Array, ...]]:
        with torch.no_grad():
            params = [param.detach() for param in model.parameters()]
            whole = [param.full_tensor() if hasattr(param, "full_tensor") else param for param in params]
        return [tuple(param.double().numpy().copy() for param in whole)]
