"""Tests notice what goes wrong between the workers of a distributed kvstore; all run in one cluster."""

from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from worker_runs import run_case

from unifiedamp.conformance.ranks import play_all
from unifiedamp.conformance.ranks.cases import cases_of
from unifiedamp.conformance.suite.test_ranks import follows_the_oracle
from unifiedamp.workloads.training import loop
from unifiedamp.workloads.training.shard import shard
from unifiedamp_mxnet.conformance.cluster import workers
from unifiedamp_mxnet.conformance.ranks import KINDS, Worker
from unifiedamp_mxnet.distributed import reduction
from unifiedamp_mxnet.distributed.launched import LaunchedRanks
from unifiedamp_mxnet.distributed.workers import WorkerFlags
from unifiedamp_mxnet.training import prepared_optimizer
from unifiedamp_mxnet.training.gradients import GradientBuffer

KIND = KINDS["dist_sync"]


def not_summed():
    return patch.object(reduction, "allreduce", lambda _trainer: None)


def gradients_not_told():
    """A worker does not hear which parameters have gradients elsewhere."""
    return patch.object(WorkerFlags, "any", lambda _self, flags: flags)


@contextmanager
def checked_before_the_sum():
    own, sum_up, check = [], reduction.allreduce, prepared_optimizer.all_finite

    def summed(trainer):
        own[:] = [param.list_grad()[0].copy() for param in trainer._params]
        sum_up(trainer)

    with (
        patch.object(reduction, "allreduce", summed),
        patch.object(prepared_optimizer, "all_finite", lambda _: check(own)),
    ):
        yield


def reduced_in_each_pass():
    add = GradientBuffer.add_backward

    def add_and_reduce(self, losses):
        add(self, losses)
        self.reduce()

    return patch.object(GradientBuffer, "add_backward", add_and_reduce)


FAULTS = {
    "not summed": (not_summed, "clipping"),
    "gradients not told": (gradients_not_told, "absent"),
    "checked before the sum": (checked_before_the_sum, "overflow"),
    "reduced in each pass": (reduced_in_each_pass, "accumulation"),
}


def play_with(index, _count, name, cases):
    with FAULTS[name][0]():
        yield from play_all(Worker(index, {}), cases, "eager")


@pytest.mark.parametrize("name", FAULTS)
def test_the_chapter_kills(name):
    cases = cases_of(KIND, 2, 12)[FAULTS[name][1]]
    answers = workers(2).run(play_with, name, cases)
    with pytest.raises(AssertionError):
        for case, traces in zip(cases, zip(*answers, strict=True), strict=True):
            both = [trace for each in traces for trace in each]
            follows_the_oracle(both, case, KIND, 2, case.scale.initial_scale)


class _First:
    rank, size = 0, 2


def wrong_shard():
    return patch.object(loop, "shard", lambda workload, batch, _ranks: shard(workload, batch, _First()))


def loss_not_divided():
    return patch.object(LaunchedRanks, "step", lambda _self, step: step)


def own_weights():
    return patch.object(LaunchedRanks, "wrap", lambda _self, model: model)


OF_TRAIN = {"wrong shard": wrong_shard, "loss not divided": loss_not_divided, "own weights": own_weights}


def train_with(_index, _count, name, folder):
    with OF_TRAIN[name]():
        yield run_case("mxnet", Path(folder), "plain")


@pytest.mark.parametrize("name", OF_TRAIN)
def test_training_in_one_process_kills(name, tmp_path):
    ((first,), _) = workers(2).run(train_with, name, str(tmp_path / "together"))
    alone = run_case("mxnet", tmp_path / "alone", "plain")
    assert first["losses"] != pytest.approx(alone["losses"], rel=1e-3)
