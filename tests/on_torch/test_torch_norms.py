"""The norm of gradients over all shards, and clipping by it. Processes joined by gloo."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loops import batch, session
from ranks import checked, run_ranks
from torch.nn.functional import cross_entropy

import unifiedamp as ua

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)


def blocks():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 7), torch.nn.Tanh(), torch.nn.Linear(7, 6), torch.nn.Linear(6, 4))


def normalization():
    return torch.nn.Sequential(torch.nn.LayerNorm(7))


def shard(model, how):
    """Shard a part of the model, or all of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInputOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    if how == "some":
        fully_shard(model[2], mesh=mesh["inner"])
    elif how == "hybrid":
        fully_shard(model, mesh=mesh)
    elif how == "two meshes":
        fully_shard(model[0], mesh=mesh["inner"])
        fully_shard(model[2], mesh=mesh["outer"])
        fully_shard(model[3], mesh=mesh)
    elif how in ("tensor parallel", "both"):
        parallelize_module(model, mesh["inner"], {"2": ColwiseParallel(), "3": RowwiseParallel()})
        if how == "both":
            fully_shard(model, mesh=mesh["outer"])
    elif how == "sequence":
        whole, rows = (Replicate(),), (Shard(0),)
        model[1] = normalization()
        styles = {
            "": PrepareModuleInputOutput(
                input_layouts=whole, desired_input_layouts=rows, output_layouts=rows, desired_output_layouts=whole
            ),
            "0": SequenceParallel(sequence_dim=0),
        }
        parallelize_module(model[1], mesh["inner"], styles)
    return model


def normed(_rank, how):
    return trained(shard(blocks(), how))


def trained(model):
    """Train on the same batch on each rank, clipped; return the norms, and the weights as they were before sharding."""
    amp = session("float32", loss_scale=1024.0)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))
    norms = []
    for seed in range(3):
        x, y = batch(seed)
        amp.backward(lambda x=x, y=y: cross_entropy(full(model(x)), y), optimizer)
        norm = amp.clip_grad_norm(optimizer, 0.2)
        assert type(norm) is torch.Tensor
        norms.append(float(amp.to_numpy(norm)))
        assert amp.step(optimizer).applied
    return norms, amp.master_weights(model)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@pytest.mark.parametrize("how", ["some", "hybrid", "two meshes", "tensor parallel", "both", "sequence"])
def test_the_norm_is_that_of_the_whole_gradient(how):
    plain = blocks()
    if how == "sequence":
        plain[1] = normalization()
    norms, weights = trained(plain)
    for found, shards in checked(run_ranks(normed, how, count=4)):
        assert found == pytest.approx(norms, rel=1e-5)
        for name, array in weights.items():
            np.testing.assert_allclose(shards[name], array, rtol=1e-5, atol=1e-6)


def overflowing(rank):
    from torch.distributed.fsdp import fully_shard

    amp = session("float32", loss_scale=SCALE)
    model = torch.nn.Linear(2, 3, bias=False)
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    amp.backward(lambda: model(torch.full((1, 2), 1e30)).sum() / 8, optimizer)
    return float(amp.clip_grad_norm(optimizer, 1.0)), amp.step(optimizer).applied


def test_a_norm_whose_squares_overflow_is_right():
    norm = math.sqrt(6) * 1e30 / 8
    assert checked(run_ranks(overflowing)) == [(pytest.approx(norm, rel=1e-6), True)] * 2
