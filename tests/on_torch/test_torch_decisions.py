"""Which ranks decide together, and what they compare and say. Processes joined by gloo."""

import math
import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from loops import mlp, session
from ranks import checked, run_ranks

import unifiedamp as ua
from unifiedamp.loss_scale import ScaleState

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)


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
    for index in range(2 + rank // 2):  # the second pair makes one more step, alone
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
    return why_uncaptured([model], "cuda" if how == "gloo" else "cpu")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("plain", "no prepared model is wrapped: prepare the one that DistributedDataParallel or fully_shard returned"),
        ("unused", "find_unused_parameters=True) reads from the device"),
        ("group", "with the default group alone"),
        ("wrapped", ""),
        ("gloo", "the ranks communicate by gloo, through the host's memory"),
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
    rows = [(row.value, row.native, row.note) for row in map(plan.row, ("ranks", "gradients of ranks"))]
    return rows, [plan.row(name).value for name in ("world size", "process group", "gradients of ranks")]


@pytest.mark.parametrize(
    ("how", "decision", "reduction"),
    [
        ("ddp", "torch.distributed.all_reduce(found_inf, MAX)", ("all-reduce", "once per window")),
        ("bfloat16", "none", ("all-reduce", "once per window")),
        ("fsdp2", "torch.distributed.all_reduce(found_inf, MAX)", ("reduce-scatter", "once per window")),
        ("plain", "torch.distributed.all_reduce(found_inf, MAX)", ("none", "no model is wrapped")),
    ],
)
def test_explain_says_who_decides_and_how_gradients_are_reduced(how, decision, reduction):
    for (ranks, gradients), values in checked(run_ranks(explained, how)):
        assert values == ["2", "ranks 0, 1", "as they are" if how == "plain" else "reduced in float32"]
        assert ranks[:2] == ("2 of 2 (gloo)", decision)
        assert reduction[0] in gradients[1]
        assert reduction[1] in gradients[2]
