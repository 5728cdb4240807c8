"""Reducers of DistributedDataParallel that prepare makes anew. Processes joined by gloo."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loops import batch, mlp, session
from ranks import checked, run_ranks
from torch.nn.functional import cross_entropy

import unifiedamp as ua


def reduced(rank, again):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    from unifiedamp_torch.distributed.reducers import make_reducer

    model = torch.nn.parallel.DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(4):
        if again and index in (0, 2):
            make_reducer(model)
        x, y = (each[16 * rank : 16 * rank + 16] for each in batch(index))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return [param.tolist() for param in model.parameters()]


def test_a_reducer_made_anew_reduces_as_before():
    """With the hooks that the model had."""
    plain, again = checked(run_ranks(reduced, False)), checked(run_ranks(reduced, True))
    assert plain == again
    assert plain[0] == plain[1]


def images(rank, wanted):
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 4))
    model = torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
    amp = session(tuning=replace(ua.Tuning(), channels_last=wanted))
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        x, y = torch.randn(8, 3, 8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        amp.backward(lambda x=x, y=y: cross_entropy(model(x), y), optimizer)
        layouts = {
            each.is_contiguous(memory_format=torch.channels_last) for each in (inner[0].weight, inner[0].weight.grad)
        }
        amp.step(optimizer)
    return [param.tolist() for param in model.parameters()], layouts


def test_a_wrapped_model_can_be_channels_last():
    """Its gradients, in the reducer's buckets, then are too."""
    plain, last = checked(run_ranks(images, False)), checked(run_ranks(images, True))
    assert [layouts for _, layouts in last] == [{True}] * 2
    for (one, _), (other, _) in zip(plain, last, strict=True):
        for before, after in zip(one, other, strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)
    assert last[0][0] == last[1][0]


def cast_after_wrapping(rank, policy, masters):
    amp = session(policy, loss_scale=8.0 if masters else None, master_weights=masters)
    model = torch.nn.parallel.DistributedDataParallel(mlp())
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3))
    for seed in range(3):
        x, y = (each[16 * rank : 16 * rank + 16] for each in batch(seed))
        amp.backward(lambda x=x, y=y: cross_entropy(model(x), y), optimizer)
        amp.step(optimizer)
    return amp.master_weights(model)


@pytest.mark.parametrize(("policy", "masters"), [("bfloat16", True), ("bfloat16", False), ("float32", False)])
def test_a_model_cast_after_it_was_wrapped_is_reduced(policy, masters):
    """Autograd forgets the hooks of a parameter whose dtype changes."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for seed in range(3):
        x, y = batch(seed)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    first, second = checked(run_ranks(cast_after_wrapping, policy, masters))
    tolerance = 1e-5 if policy == "float32" else 2.0**-6
    for (name, whole), (shared, array) in zip(model.named_parameters(), first.items(), strict=True):
        assert (array == second[shared]).all(), f"{name} differs between the ranks"
        np.testing.assert_allclose(array, whole.detach().numpy(), rtol=tolerance, atol=tolerance)
