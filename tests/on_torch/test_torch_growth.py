"""What the layer does in a step does not grow with the ranks: its calls, collectives and memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import unifiedamp as ua
from unifiedamp_torch.distributed import agreement

SIZES = (8, 64, 512)

SMALL = 100
"""Smaller blocks are wrappers that torch makes for tensors, some dozens more or less in each run; what holds an item
per rank has larger ones too."""


@pytest.fixture
def simulated(monkeypatch):
    """Join this many ranks of which this process is the only real one: no collective does anything."""
    # Settings are compared in prepare and in the first step, as Python objects; the others send none.
    monkeypatch.setattr(agreement.Agreement, "check", lambda *args: None)

    def join(size):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


def own_reduction(_state, bucket):
    """A reduction of DDP's buckets that the simulated group can do, also in the place of torch's own."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def model_of(kind, amp):
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    if kind == "fsdp":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        return fully_shard(layers, mesh=mesh, mp_policy=amp.mp_policy())
    model = DistributedDataParallel(layers)
    model.register_comm_hook(None, default_hooks.allreduce_hook if kind == "ddp" else own_reduction)
    return model


def costs(kind, calls_of_step):
    """Return the Python calls of the layer in a step, its collectives, and the bytes that it holds."""
    tracemalloc.start()
    amp = ua.Amp("torch", "mixed_float16", loss_scale="dynamic", device="cpu")
    model = model_of(kind, amp)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    x = torch.ones(4, 64)

    def step():
        amp.backward(lambda: model(x).square().mean(), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)

    for _ in range(3):
        step()
    gc.collect()  # what is garbage is not held
    held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/unifiedamp*")])
    tracemalloc.stop()
    return (*calls_of_step(step), sum(trace.size for trace in held.traces if trace.size >= SMALL))


@pytest.fixture
def calls_of_step(monkeypatch):
    reduced = []

    def counted(tensor, *args, **kwargs):
        reduced.append(tuple(tensor.shape))
        return all_reduce(tensor, *args, **kwargs)

    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", counted)

    def count(step):
        calls = 0

        def note(frame, event, _argument):
            nonlocal calls
            calls += event == "call" and "/unifiedamp" in frame.f_code.co_filename

        reduced.clear()
        gc.disable()  # what dies of it may call back
        sys.setprofile(note)
        try:
            step()
        finally:
            sys.setprofile(None)
            gc.enable()
        return calls, len(reduced)

    return count


COLLECTIVES = {"ddp": 0, "ddp with a hook": 1, "fsdp": 2}
"""Of the layer in a step. A hook of the user's need not give all ranks the same gradients, so that they must agree."""


@pytest.mark.parametrize("kind", list(COLLECTIVES))
def test_a_step_costs_the_same_on_any_number_of_ranks(simulated, calls_of_step, monkeypatch, kind):
    monkeypatch.setattr(default_hooks, "allreduce_hook", lambda state, bucket: own_reduction(state, bucket))
    found = []
    for size in (SIZES[0], *SIZES):  # the first one imports what a step needs
        simulated(size)
        found.append(costs(kind, calls_of_step))
        dist.destroy_process_group()
    calls, collectives, held = zip(*found[1:], strict=True)
    assert calls[0] > 50
    assert len(set(calls)) == 1, calls
    assert set(collectives) == {COLLECTIVES[kind]}
    assert max(held) - min(held) < 2048, held
