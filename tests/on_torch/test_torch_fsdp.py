"""FSDP2 under a session's policy. Processes joined by gloo."""

import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from loops import batch, mlp, session
from ranks import checked, run_ranks
from torch.nn.functional import cross_entropy

import unifiedamp as ua


def under_policy(_rank, policy):
    from torch.distributed.fsdp import fully_shard

    amp = session(policy, loss_scale="none")
    model = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)), torch.nn.Linear(16, 4)
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for module in (model[0], model):
        fully_shard(module, mesh=mesh, mp_policy=amp.mp_policy())
    seen = []
    model[0][1].register_forward_hook(
        lambda _module, inputs, output: seen.append((inputs[0].dtype, output.dtype, torch.is_autocast_enabled("cpu")))
    )
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch()
    logits = []
    amp.backward(lambda: cross_entropy(logits.append(model(x)) or logits[0], y), optimizer)
    grads = {gradient.dtype for gradient in amp.gradients(optimizer).values()}
    amp.step(optimizer)
    return seen, logits[0].dtype, grads, {param.dtype for param in model.parameters()}


@pytest.mark.parametrize(("policy", "dtype"), [("mixed_bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_fsdp2_computes_under_the_policy(policy, dtype):
    """Without autocast inside, with float32 gradients, parameters and outputs."""
    float32 = torch.float32
    for answer in checked(run_ranks(under_policy, policy)):
        assert answer == ([(dtype, dtype, False)], float32, {float32}, {float32})


def adversaries(shard):
    """The weights of a generator and a discriminator after steps on the ranks' rows, with an open window between."""
    models = [mlp(seed) for seed in range(2)]
    models[0][3] = torch.nn.Linear(16, 8)
    for model in models if shard else ():
        shard(model)
    generator, critic = models
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    amp = session(loss_scale=64.0)
    amp.prepare(*models, *optimizers)
    x, _ = batch()
    x = x.chunk(2)[dist.get_rank()] if shard else x
    for _ in range(2):
        amp.backward(lambda: critic(x).square().mean() - critic(generator(x).detach()).mean(), optimizers[1])
        amp.backward(lambda: critic(generator(x)).mean(), optimizers[0])
        for optimizer in optimizers:
            assert amp.step(optimizer).applied
    return [array.tolist() for model in models for array in amp.master_weights(model).values()]


def sharded_adversaries(_rank):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    return adversaries(lambda model: fully_shard(model, mesh=mesh))


def test_a_loss_trains_the_shards_of_the_optimizer_that_it_names_and_no_others():
    expected = adversaries(None)
    for weights in checked(run_ranks(sharded_adversaries)):
        for found, value in zip(weights, expected, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(value))


def overridden(_rank, overrides):
    from torch.distributed.fsdp import fully_shard

    policy = replace(ua.Policy.parse("mixed_bfloat16"), **overrides)
    amp, model = session(policy), mlp()
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)), mp_policy=amp.mp_policy())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [[str(each.message) for each in caught if issubclass(each.category, ua.PolicyWarning)]]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [({"op_overrides": {"softmax": "float32"}}, 1), ({"layer_overrides": {"0": "float32"}}, 1), ({}, 0)],
)
def test_overrides_that_fsdp2_leaves_without_effect_are_said(overrides, said):
    for (messages,) in checked(run_ranks(overridden, overrides)):
        assert len(messages) == said
        assert all("have no effect inside FSDPSequential" in message for message in messages)


def test_the_policy_of_float8_is_refused():
    amp = session("mixed_float8", backend_options={"torch": {"emulate": True}})
    with pytest.raises(ua.PolicyNotSupportedError, match=r"amp\.mp_policy: fully_shard cannot gather .* float8"):
        amp.mp_policy()
