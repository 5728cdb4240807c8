"""``unifiedamp diff`` over one process and two ranks, and over two runs of two ranks, under DDP and FSDP2."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from loops import session
from ranks import checked, run_ranks

from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import read_recording

nn = torch.nn
BATCHES = [np.random.default_rng(seed).normal(size=(8, 6)).astype(np.float32) for seed in range(3)]


class Last(nn.Linear):
    """A linear layer whose weight's gradient can be multiplied before ranks sum it."""

    factor = 1.0

    def forward(self, x):
        weight = self.weight * 1.0
        if self.factor != 1.0:
            weight.register_hook(lambda gradient: gradient * self.factor)
        return nn.functional.linear(x, weight, self.bias)


def wrapped(model, wrap):
    if wrap == "shard":
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        for each in (model[0], model[2], model):
            fully_shard(each, mesh=mesh)
        return model
    return nn.parallel.DistributedDataParallel(model)


class Reduction:
    """A comm hook that sums over the ranks, but for one step."""

    def __init__(self):
        self.alone = False

    def __call__(self, _, bucket):
        buffer, done = bucket.buffer(), torch.futures.Future()
        if not self.alone:
            torch.distributed.all_reduce(buffer.div_(2))
        done.set_result(buffer)
        return done


def run(path, rank=None, case="plain", wrap="ddp"):
    """Train three steps on the whole batch, or on every second row of it."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Last(8, 2))
    if case == "output" and rank == 1:
        inner[2].register_forward_hook(lambda _module, _args, output: output * 1.1)
    if case == "gradient" and rank == 1:
        inner[2].factor = 1.5
    if case == "layer":
        inner[0].register_forward_hook(lambda _module, _args, output: output * 1.1)
    model, reduction = inner if rank is None else wrapped(inner, wrap), Reduction()
    if case == "reduction":
        model.register_comm_hook(None, reduction.__call__)
    amp = session(loss_scale=8.0)
    rate = 0.2 if case == "rate" else 0.1
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    with contextlib.closing(amp), amp.record(path, every=1, compare=True):
        for number, batch in enumerate(BATCHES, 1):
            x = torch.from_numpy(batch if rank is None else batch[rank::2])
            if case == "data" and number == 2:
                x = x + 0.1 * (rank == 1)
            reduction.alone = number == 2
            amp.backward(lambda x=x: model(x).square().mean(), optimizer)
            amp.step(optimizer)


PLANTED = {
    "plain": None,
    "rate": (1, "update", "0.weight", ""),
    "data": (2, "data", "", "on rank 1"),
    "output": (1, "forward", "2", "on rank 1"),
    "gradient": (1, "backward", "2.weight", "on rank 1"),
    "layer": (1, "forward", "0", ""),
    "reduction": (2, "reduction", "2.bias", ""),
}
CASES = [(wrap, case) for wrap in ("ddp", "shard") for case in PLANTED if (wrap, case) != ("shard", "reduction")]
"""``fully_shard`` has no gradients in a step that it does not reduce."""


def all_cases(rank, folder):
    for wrap, case in CASES:
        run(f"{folder}/{wrap}-{case}.jsonl", rank, case, wrap)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    checked(run_ranks(all_cases, str(folder)))
    run(folder / "alone.jsonl")
    names = [f"{wrap}-{case}" for wrap, case in CASES]
    return {name: read_recording(folder / f"{name}.jsonl") for name in (*names, "alone")}


def where(found):
    first = found.first
    return None if first is None else (first.step, first.part, first.name)


@pytest.mark.parametrize(("wrap", "case"), CASES)
def test_two_ranks_and_two_ranks(recordings, wrap, case):
    for plain in ("ddp-plain", "shard-plain"):
        found = difference(recordings[plain], recordings[f"{wrap}-{case}"])
        assert where(found) == (PLANTED[case] and PLANTED[case][:3])
        if found.first is not None:
            assert PLANTED[case][3] in found.first.note


@pytest.mark.parametrize(("wrap", "case"), CASES)
def test_one_process_and_two_ranks(recordings, wrap, case):
    """Layers by norms and sums over the batch, which every second row does not change."""
    found = difference(recordings["alone"], recordings[f"{wrap}-{case}"])
    assert where(found) == (PLANTED[case] and PLANTED[case][:3])
    assert found.compared[0].startswith("1 and 2 ranks")


def test_records_of_shards_are_of_whole_tensors(recordings):
    for one, other in zip(recordings["alone"].steps, recordings["shard-plain"].steps, strict=True):
        for part in ("gradients", "before", "update"):
            ours, theirs = one["compare"][part], other["compare"][part]
            assert {name: each["shape"] for name, each in ours.items()} == {
                name: each["shape"] for name, each in theirs.items()
            }
            for name, each in ours.items():
                np.testing.assert_allclose(theirs[name]["sketch"], each["sketch"], rtol=1e-4, atol=1e-5)
                assert theirs[name]["norm"] == pytest.approx(each["norm"], rel=1e-4)


def test_without_the_answer_of_a_rank_weights_and_sums_are_compared(recordings):
    for wrap in ("ddp", "shard"):
        for name, expected in (("plain", None), ("rate", "update"), ("gradient", "backward")):
            lost = recordings[f"{wrap}-{name}"]
            steps = [{**step, "ranks": {**step["ranks"], "missing": [1]}} for step in lost.steps]
            found = difference(recordings["alone"], dataclasses.replace(lost, steps=steps))
            assert (found.first and found.first.part) == expected
