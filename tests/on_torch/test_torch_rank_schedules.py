"""Policy schedules over two gloo processes, under DDP and FSDP2: one switch on all ranks, and what is refused."""

import math
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua

nn = torch.nn
STEPS, FLOAT8, BFLOAT16 = 6, "mixed_float8;emulate=true", "mixed_bfloat16"
DELAYED = f"{FLOAT8};recipe=delayed"
SCHEDULES = {"tensorwise": {0: FLOAT8, "50%": BFLOAT16}, "delayed": {0: BFLOAT16, "50%": DELAYED}}
SCALE = ua.DynamicLossScale(initial_scale=2.0, growth_interval=1000)
OVERFLOW = 1
"""The iteration in which rank 0 overflows, under a loss scale."""


def mlp(wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    if wrap == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if wrap == "shard":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (2,))
        for each in (model[0], model[2], model):
            fully_shard(each, mesh=mesh)
    return model


def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(32, 32, generator=generator), torch.randn(32, 32, generator=generator)


def prepared(schedule, wrap, **options):
    amp = ua.Amp("torch", schedule=schedule, total_steps=STEPS, device="cpu", **options)
    model = mlp(wrap)
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def train(schedule, wrap=None, rows=slice(None), overflows=False, **options):
    """Return the compute dtype of each iteration, the skipped steps and the weights."""
    amp, model, optimizer = prepared(schedule, wrap, **options)
    dtypes = []
    for step in range(STEPS):
        x, y = (each[rows] for each in data(step))
        factor = math.inf if overflows and step == OVERFLOW else 1.0
        dtypes.append(amp.policy.compute_dtype)
        amp.backward(lambda x=x, y=y, factor=factor: (model(x).float() - y).square().mean() * factor, optimizer)
        amp.step(optimizer)
    weights = {name.removeprefix("module."): each for name, each in amp.master_weights(model).items()}
    return dtypes, amp.skipped_steps, weights


RUNS = [(name, wrap, None) for name in SCHEDULES for wrap in ("ddp", "shard")] + [
    ("tensorwise", "ddp", SCALE),
    ("tensorwise", "shard", SCALE),
]


def outcome(case, rank):
    try:
        case(rank)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def step(amp, model, optimizer):
    x, y = data(0)
    amp.backward(lambda: (model(x).float() - y).square().mean(), optimizer)
    amp.step(optimizer)


def other_schedule(rank):
    prepared({0: FLOAT8, (2, 3)[rank]: BFLOAT16}, "ddp")


def other_total(rank):
    amp = ua.Amp("torch", schedule=SCHEDULES["tensorwise"], total_steps=(6, 8)[rank], device="cpu")
    amp.prepare(mlp("shard"))


def no_schedule(rank):
    if rank:
        session(FLOAT8).prepare(mlp("ddp"))
    else:
        prepared(SCHEDULES["tensorwise"], "ddp")


def resumed(wrap, before_prepare=False, **options):
    """Rank 1 loads a state of the iteration 2; the policy there is that of iteration 0."""

    def case(rank):
        amp = ua.Amp("torch", schedule=SCHEDULES["tensorwise"], total_steps=STEPS, device="cpu", **options)
        state = amp.state_dict()
        state["schedule"] = {**state["schedule"], "step": 2}
        model = mlp(wrap)
        if rank and before_prepare:
            amp.load_state_dict(state)
        amp.prepare(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
        if rank and not before_prepare:
            amp.load_state_dict(state)
        kept = [param.detach().clone() for param in model.parameters()]
        try:
            step(amp, model, optimizer)
        finally:
            assert all(map(torch.equal, kept, model.parameters()))

    return case


def histories_on_one(rank):
    amp = session(DELAYED)
    model = mlp("ddp")
    amp.prepare(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    if rank:
        history = np.ones((3, 2), np.float32)
        amp.backend.amax_history.write({"module.0": history, "module.2": history})
    step(amp, model, optimizer)


def cast_by_fsdp(rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    amp = ua.Amp("torch", schedule={0: BFLOAT16, 1: "float32"}, device="cpu")
    model = mlp(None)
    mesh = dist.init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


ELSEWHERE = "PrepareError: amp.step: ranks .* the iteration of the schedule is 0 on rank 0 and 2 on rank 1; load"
REFUSED = {
    "schedule": (other_schedule, r"PrepareError: amp\.prepare: .*schedule is 0: mixed.* \| 2: .* on rank 0 and .*3: "),
    "total": (other_total, r"PrepareError: amp\.prepare: .*schedule is .* 3: .* on rank 0 and .* 4: .* on rank 1"),
    "none": (no_schedule, r"PrepareError: amp\.prepare: .*schedule is 0: .* on rank 0 and None on rank 1"),
    "resumed": (resumed("ddp"), ELSEWHERE),
    "resumed shards": (resumed("shard"), ELSEWHERE),
    "resumed, scaled": (resumed("ddp", loss_scale=SCALE), ELSEWHERE),
    "resumed before": (resumed("ddp", True), ELSEWHERE.replace("step", "prepare")),
    "histories": (histories_on_one, r"PrepareError: amp\.step: .*amax histories is nothing on rank 0 and 2 layers"),
    "cast by FSDP": (
        cast_by_fsdp,
        "PrepareError: amp.prepare: FSDPSequential is sharded with an mp_policy, .*sched",
    ),
}


def everything(rank):
    rows = slice(16 * rank, 16 * rank + 16)
    trained = [
        train(SCHEDULES[name], wrap, rows, overflows=bool(scale and not rank), loss_scale=scale)
        for name, wrap, scale in RUNS
    ]
    return trained, {name: outcome(case, rank) for name, (case, _) in REFUSED.items()}


@pytest.fixture(scope="module")
def ranks():
    return checked(run_ranks(everything))


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_all_ranks_switch_at_one_iteration_and_train_as_one_process(ranks, index):
    name, _, scale = RUNS[index]
    dtypes, skipped, weights = train(SCHEDULES[name], overflows=scale is not None, loss_scale=scale)
    first, second = SCHEDULES[name].values()
    kinds = [ua.Policy.parse(each).compute_dtype for each in (first, second)]
    assert skipped == (scale is not None)
    for found in ranks:
        assert found[0][index][:2] == (dtypes, skipped) == ([kinds[0]] * 3 + [kinds[1]] * 3, skipped)
        for key, array in weights.items():
            np.testing.assert_array_equal(found[0][index][2][key], ranks[0][0][index][2][key])
            np.testing.assert_allclose(found[0][index][2][key], array, atol=2.0**-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_refused_on_both_ranks(ranks, name):
    for _, refused in ranks:
        assert re.match(REFUSED[name][1], refused[name]), refused[name]
