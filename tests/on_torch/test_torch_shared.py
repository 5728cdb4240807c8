"""Models that several ranks hold: who decides together, and the norm over all shards. Processes joined by gloo."""

import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loops import batch, mlp, session
from ranks import run_ranks
from torch.nn.functional import cross_entropy

import unifiedamp as ua
from unifiedamp.loss_scale import ScaleState

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)


def checked(answers):
    """Return the answers of all ranks; fail where one raised."""
    for answer in answers:
        assert not isinstance(answer, str), answer
    return answers


def oracle(found):
    """Return the scale after each step, by the reference transition."""
    state, scales = ScaleState(SCALE.initial_scale), []
    for bad in found:
        state = SCALE.next_state(state, bad)
        scales.append(state.scale)
    return scales


# -- ranks without gradients ---------------------------------------------------------------------------------------

MOMENTS = [(1.0, None), (math.inf, None), (1.0, 1.0), (1.0, math.inf), (None, 1.0), (None, None), (1.0, None)]
"""What the gradient of the second tower is on each rank, in each step; None: it gets none."""


def towers(rank, fused):
    amp = session(loss_scale=SCALE)
    first, second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    _, one, two = amp.prepare(
        torch.nn.ModuleList([first, second]),
        *(torch.optim.SGD(each.parameters(), lr=0.5, fused=fused) for each in (first, second)),
    )
    torch.nn.init.ones_(second.weight)
    ones, seen = torch.ones(1, 1), []
    for moment in MOMENTS:
        factor = moment[rank]
        loss = (
            (lambda: first(ones).sum()) if factor is None else (lambda f=factor: (first(ones) + f * second(ones)).sum())
        )
        amp.backward(loss, [one, two])
        amp.step(one)
        outcome = amp.step(two)
        seen.append((outcome.applied, outcome.reason, amp.loss_scale))
    state = amp.state_dict()["state"]
    return seen, second.weight.item(), (state["applied_steps"], state["skipped_steps"])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.StepWarning")
def test_a_rank_without_gradients_decides_with_the_others(fused):
    """It counts and scales as they do, and leaves its parameters alone."""
    (first, weight, counts), (second, other, others) = checked(run_ranks(towers, fused))
    assert first == second
    assert counts == others
    assert [applied for applied, *_ in first] == [True, False, True, False, True, False, True]
    assert first[5][1] == "no_gradients"
    assert [scale for *_, scale in first] == oracle([any(each in (math.inf,) for each in pair) for pair in MOMENTS])
    assert weight == pytest.approx(1 - 0.5 * 3)  # applied with a gradient of 1 in steps 1, 3 and 7
    assert other == pytest.approx(1 - 0.5 * 2)  # in steps 3 and 5


# -- who decides together ------------------------------------------------------------------------------------------


def grouped(rank, how):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    options = {"named": {"process_group": mine}, "alone": {"process_group": False}}.get(how, {})
    amp = session(loss_scale=SCALE, backend_options={"torch": options})
    model = torch.nn.Linear(1, 1, bias=False)
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=mine)
    elif how == "mesh":
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Linear(1, 2, bias=False)
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "mine"))
        fully_shard(model, mesh=mesh["mine"])
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    applied = []
    for index in range(2 + rank // 2):  # the second pair takes a step more, which nobody waits for
        x = torch.full((1, 1), math.inf if index == 0 and rank == 0 else 1.0)
        amp.backward(lambda x=x: model(x).sum(), optimizer)
        applied.append(amp.step(optimizer).applied)
    return applied, amp.loss_scale


@pytest.mark.parametrize("how", ["named", "ddp", "mesh"])
def test_those_who_share_a_model_decide_together(how):
    skipped, untouched = ([False, True], 4.0), ([True] * 3, 16.0)
    assert checked(run_ranks(grouped, how, count=4)) == [skipped, skipped, untouched, untouched]


def test_a_rank_may_train_alone():
    answers = checked(run_ranks(grouped, "alone", count=4))
    assert [applied for applied, _ in answers] == [[False, True], [True, True], [True] * 3, [True] * 3]


@pytest.mark.parametrize("wrong", ["world", True, 3, None])
def test_a_group_that_is_none_is_refused(wrong):
    with pytest.raises(
        ua.ConfigError, match=r"process_group must be a torch\.distributed\.ProcessGroup, or False, got"
    ):
        session(backend_options={"torch": {"process_group": wrong}})


def outside(rank):
    group = dist.new_group([0])
    if rank == 0:
        return True
    with pytest.raises(ua.ConfigError, match="this rank is not in the group"):
        session(backend_options={"torch": {"process_group": group}})
    return True


def test_a_group_without_this_rank_is_refused():
    assert checked(run_ranks(outside)) == [True, True]


def disagreeing(rank, name):
    values = {
        "policy": ("float32", "mixed_bfloat16"), "accumulate_steps": (1, 2),
        "loss_scale": (SCALE, replace(SCALE, growth_interval=3)),
    }  # fmt: skip
    options = {"policy": "float32", "loss_scale": SCALE}
    if name in values:
        options[name] = values[name][rank]
    amp = session(options.pop("policy"), **options)
    if name == "the present loss scale" and rank:
        state = amp.state_dict()
        state["state"]["scale"] = 4.0
        amp.load_state_dict(state)
    model = torch.nn.parallel.DistributedDataParallel(mlp())
    with pytest.raises(ua.PrepareError) as caught:
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("policy", "policy is float32.* on rank 0 and mixed_bfloat16.* on rank 1"),
        ("accumulate_steps", "accumulate_steps is 1 on rank 0 and 2 on rank 1"),
        ("loss_scale", "loss_scale is .*growth_interval=2.* on rank 0 and .*growth_interval=3.* on rank 1"),
        ("the present loss scale", "the present loss scale is 8 on rank 0 and 4 on rank 1"),
    ],
)
def test_settings_that_differ_are_refused_on_every_rank(name, said):
    first, second = checked(run_ranks(answering, name))
    assert first == second
    assert re.search(said, first[0]), first


def answering(rank, name):
    return [disagreeing(rank, name)]


def old_sharding(_rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    with pytest.raises(ua.PrepareError, match=r"FSDP1.*use torch\.distributed\.fsdp\.fully_shard \(FSDP2\)"):
        session().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return True


def test_fsdp1_is_refused():
    assert checked(run_ranks(old_sharding)) == [True, True]


def ignoring(rank):
    inner = torch.nn.ModuleDict({"all": torch.nn.Linear(1, 1, bias=False), "own": torch.nn.Linear(1, 1, bias=False)})
    inner.forward = lambda x: inner["all"](x).sum() + (math.inf if not rank else 1.0) * inner["own"](x).sum()
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["own.weight"])
    amp = session(loss_scale=SCALE)
    model = torch.nn.parallel.DistributedDataParallel(inner)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    amp.backward(lambda: model(torch.ones(1, 1)), optimizer)
    return amp.step(optimizer).applied, amp.loss_scale


def test_parameters_that_a_wrapper_ignores_are_asked_about():
    """Their gradients differ between the ranks."""
    assert checked(run_ranks(ignoring)) == [(False, 4.0)] * 2


def uncaptured(_rank, how):
    from unifiedamp_torch.compiling.shared_models import why_uncaptured

    model = mlp()
    options = {"unused": {"find_unused_parameters": True}, "group": {"process_group": dist.new_group([0, 1])}}
    if how != "plain":
        model = torch.nn.parallel.DistributedDataParallel(model, **options.get(how, {}))
    return why_uncaptured([model])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("plain", "no prepared model is wrapped: prepare the one that DistributedDataParallel or fully_shard returned"),
        ("unused", "find_unused_parameters=True) reads from the device"),
        ("group", "with the default group alone"),
        ("wrapped", ""),
    ],
)
def test_what_cannot_be_captured_is_said(how, why):
    for said in checked([[each] for each in run_ranks(uncaptured, how)]):
        assert why in said[0]
        assert bool(why) == bool(said[0])


def explained(_rank, how):
    from torch.distributed.fsdp import fully_shard

    amp = session("mixed_bfloat16" if how == "bfloat16" else "float32", accumulate_steps=2,
                  loss_scale=None if how == "bfloat16" else SCALE)  # fmt: skip
    model = mlp()
    if how == "fsdp2":
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    elif how != "plain":
        model = torch.nn.parallel.DistributedDataParallel(model)
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plan = amp.explain()
    return [(row.value, row.native, row.note) for row in map(plan.row, ("ranks", "gradients of ranks"))]


@pytest.mark.parametrize(
    ("how", "decision", "reduction"),
    [
        ("ddp", "torch.distributed.all_reduce(found_inf, MAX)", ("all-reduce", "once per window")),
        ("bfloat16", "none", ("all-reduce", "once per window")),
        ("fsdp2", "torch.distributed.all_reduce(found_inf, MAX)", ("reduce-scatter", "after each backward pass")),
        ("plain", "torch.distributed.all_reduce(found_inf, MAX)", ("none", "no model is wrapped")),
    ],
)
def test_explain_says_who_decides_and_how_gradients_are_reduced(how, decision, reduction):
    for ranks, gradients in checked(run_ranks(explained, how)):
        assert ranks[:2] == ("2 of 2 (gloo)", decision)
        assert reduction[0] in gradients[1]
        assert reduction[1] in gradients[2]


# -- the norm over all shards --------------------------------------------------------------------------------------


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


# -- the policy of FSDP2 -------------------------------------------------------------------------------------------


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


# -- reducers ------------------------------------------------------------------------------------------------------


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
