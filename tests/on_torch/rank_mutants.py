"""Faults of ranks that train together, each laid over torch's backend in every process for the length of some cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist

from unifiedamp_torch.conformance.ranks import train
from unifiedamp_torch.distributed.distributed import TorchDistributed
from unifiedamp_torch.distributed.ranks import TrainingRanks
from unifiedamp_torch.training import gradient_norm, gradients
from unifiedamp_torch.training.scale_state import Found, HostScale
from unifiedamp_torch.training.scaler import Scaler
from unifiedamp_torch.training.training import TorchTraining


class RankMutant(NamedTuple):
    """A fault, and the cases that must notice it.

    Attributes:
        apply: makes the patches.
        kind, count: of ranks.
        topic: of ``cases_of``, or "resume".
        hangs: whether a rank waits forever.
        refused: what the backend says of it, where it refuses to train; empty where the cases must notice.
    """

    apply: Callable[[], list[Any]]
    kind: str
    topic: str
    count: int = 2
    hangs: bool = False
    refused: str = ""


MUTANTS: dict[str, RankMutant] = {}


def mutant(kind: str, topic: str, **settings: Any) -> Callable[[Callable[[], list[Any]]], Callable[[], list[Any]]]:
    def register(apply: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
        MUTANTS[apply.__name__] = RankMutant(apply, kind, topic, **settings)
        return apply

    return register


def mutated(rank, count, cases, kind, form, options, name) -> Iterator[Any]:
    """The program of a process: train with a fault."""
    with laid_over(name):
        yield from train(rank, count, cases, kind, form, options)


@contextmanager
def laid_over(name: str) -> Iterator[None]:
    patches = MUTANTS[name].apply()
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


@mutant("unwrapped", "overflow")
def found_inf_not_reduced():
    return [patch.object(TrainingRanks, "reduce", lambda *_: None)]


@mutant("fsdp2", "overflow")
def found_inf_of_shards_not_reduced():
    return [patch.object(TrainingRanks, "reduce", lambda *_: None)]


@mutant("unwrapped", "nan")
def found_inf_reduced_by_its_minimum():
    def reduce(_self, tensor, *_):
        dist.all_reduce(tensor, dist.ReduceOp.MIN)

    return [patch.object(TrainingRanks, "reduce", reduce)]


@mutant("fsdp2 + tensor parallel", "overflow", count=4)
def found_inf_reduced_over_the_wrong_group():
    """Over one dimension of a mesh of two."""
    whole = TrainingRanks.groups.fget
    return [patch.object(TrainingRanks, "groups", property(lambda self: whole(self)[:1]))]


@mutant("plain beside dtensors", "overflow")
def gradients_taken_for_the_same_on_all_ranks():
    """What ``DistributedDataParallel`` alone may be trusted with."""
    return [patch.object(TrainingRanks, "have_alike", lambda *_: True)]


@mutant("fsdp2", "clipping")
def norm_over_local_shards():
    return [patch.object(gradient_norm, "reduce_over", lambda *_: None)]


@mutant("hsdp", "clipping", count=4)
def norm_over_replicas_too():
    """Each copy of a shard counts."""
    square = gradient_norm._square

    def of_all(grads, like, layout):
        found = square(grads, like, layout)
        return found * layout[0].size(0) if layout is not None and len(layout[1]) == 2 else found

    return [patch.object(gradient_norm, "_square", of_all)]


@mutant("tensor parallel", "clipping")
def pending_sums_judged_before_they_are_made():
    return [patch.object(each, "sum_partial", lambda _: None) for each in (gradients, gradient_norm)]


@mutant("unwrapped", "absent", hangs=True)
def rank_without_gradients_stands_aside():
    decide = Scaler._decide
    return [patch.object(Scaler, "_decide", lambda self, counted, there: there and decide(self, counted, there))]


@mutant("unwrapped", "absent")
def rank_without_gradients_does_not_count():
    """It reduces with the others, and then takes no part."""
    decide = Scaler._decide
    return [patch.object(Scaler, "_decide", lambda self, counted, there: decide(self, counted, there) and there)]


@mutant("ddp", "accumulation", refused="these gradients were not reduced")
def no_sync_on_the_last_micro_batch():
    reduce = TrainingRanks.reduce_in_backward
    return [patch.object(TrainingRanks, "reduce_in_backward", lambda self, _: reduce(self, False))]


@mutant("ddp", "accumulation", refused="these gradients were not reduced")
def reduced_in_the_first_micro_batch_alone():
    return [
        patch.object(
            TorchDistributed, "begin_micro_batch", lambda self, last: self._ranks.reduce_in_backward(not last)
        ),
        patch.object(TorchDistributed, "end_micro_batch", lambda *_: None),
    ]


@mutant("fsdp2", "random")
def scale_updated_before_the_reduction():
    """All skip together, and each moves its scale by what it found itself."""
    reduce, update, own = TrainingRanks.reduce, HostScale.update, {}

    def remember(self, tensor, *operation):
        own["found"] = tensor.clone()
        reduce(self, tensor, *operation)

    def local(self, _founds):
        update(self, [Found(own["found"], own["found"][1])])

    return [patch.object(TrainingRanks, "reduce", remember), patch.object(HostScale, "update", local)]


@mutant("unwrapped", "two optimizers")
def first_optimizers_check_alone_reduced():
    decide = Scaler._decide

    def first_alone(self, counted, there):
        return decide(self, counted, there) if len(self._per_optimizer_states) == 1 else there

    return [patch.object(Scaler, "_decide", first_alone)]


def _on_the_last_rank(change):
    write = TorchTraining.write_state

    def written(self, state):
        last = dist.get_rank() == dist.get_world_size() - 1
        write(self, change(self, state) if last else state)

    return [patch.object(TorchTraining, "write_state", written)]


@mutant("fsdp2", "resume", refused="the present loss scale is")
def resumed_rank_begins_with_a_fresh_scale():
    return _on_the_last_rank(lambda training, _: training.read_state())


@mutant("fsdp2", "resume", refused="the number of good steps in a row is")
def growth_counted_per_rank_after_a_resume():
    return _on_the_last_rank(lambda _, state: replace(state, good_steps=0))
