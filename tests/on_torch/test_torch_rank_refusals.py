"""What ranks must not do, tried by two gloo processes: each is an error that names the object and what to do."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua
from unifiedamp_torch.distributed import step_counts


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 2)


def ddp():
    return torch.nn.parallel.DistributedDataParallel(linear())


def mesh():
    return dist.init_device_mesh("cpu", (2,))


def prepare(model, *, params=None, **options):
    amp = session(options.pop("policy", "float32"), **{"loss_scale": 8.0, **options})
    return amp, *amp.prepare(model, torch.optim.SGD(params or list(model.parameters()), lr=0.1))


def different(**settings):
    """Settings that differ between ranks: name → one value for each rank."""
    return lambda rank: prepare(ddp(), **{name: values[rank] for name, values in settings.items()})


def wrapped_late(rank):
    """DistributedDataParallel around a model that was prepared without it; its gradients are reduced all the same."""
    amp, model, optimizer = prepare(linear())
    outer = torch.nn.parallel.DistributedDataParallel(model)
    amp.backward(lambda: outer(torch.ones(1, 2)).sum(), optimizer)
    amp.step(optimizer)


def sharded_late(rank):
    from torch.distributed.fsdp import fully_shard

    amp, model, optimizer = prepare(linear())
    fully_shard(model, mesh=mesh())
    amp.backward(lambda: model(torch.ones(1, 2)).sum(), optimizer)
    amp.step(optimizer)


def gathered(rank):
    """The optimizer was made before the model was sharded, over the whole parameters."""
    from torch.distributed.fsdp import fully_shard

    model = linear()
    params = list(model.parameters())
    fully_shard(model, mesh=mesh())
    prepare(model, params=params)


def step(amp, model, optimizer):
    amp.backward(lambda: model(torch.ones(1, 2)).sum(), optimizer)
    amp.step(optimizer)


def without_a_wrapper(rank):
    """Nothing shares the model, and the ranks skip together: they are compared in the first step."""
    step(*prepare(linear(), loss_scale=ua.DynamicLossScale(initial_scale=(8.0, 16.0)[rank])))


def loaded_on_one(rank):
    """A checkpoint that rank 0 alone loads: gradients would be averaged with two scales, and unscaled by two."""
    amp, model, optimizer = prepare(ddp(), loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    state = amp.state_dict()
    if not rank:
        amp.load_state_dict({**state, "state": {**state["state"], "scale": 32.0}})
    before = [param.clone() for param in model.parameters()]
    try:
        step(amp, model, optimizer)
    finally:
        assert all(map(torch.equal, before, model.parameters()))


def group_of_one(rank):
    """Rank 0 names a group of itself; rank 1 finds out where it asks for a session."""
    groups = [dist.new_group([each]) for each in range(2)]
    prepare(ddp(), backend_options={"torch": {"process_group": groups[rank]}})


def other_mode(rank):
    """Mode "max" lays out convolutions anew, and buckets are summed element by element."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Conv2d(3, 2, 2))
    prepare(model, compile=("max", "off")[rank])


def other_shards(rank):
    """Adam's moments as one process saved them, for a model that two ranks share."""
    from torch.distributed.fsdp import fully_shard

    whole = linear()
    adam = torch.optim.Adam(whole.parameters())
    whole(torch.ones(1, 2)).sum().backward()
    adam.step()
    model = linear()
    fully_shard(model, mesh=mesh())
    _, optimizer = session(loss_scale=8.0).prepare(model, torch.optim.Adam(model.parameters()))[-2:]
    try:
        optimizer.load_state_dict(adam.state_dict())
    finally:
        assert not optimizer.state, "nothing was loaded"


def extended(how):
    """A layer comes into a wrapped model, and its parameters into the optimizer; its gradients are not reduced."""

    def run(rank):
        amp, model, optimizer = prepare(ddp())
        inner = model.module
        step(amp, model, optimizer)
        if how == "added":
            inner.add_module("extra", linear())
            inner.register_forward_hook(lambda module, _args, output: module.extra(output))
            optimizer.add_param_group({"params": list(inner.extra.parameters())})
        else:
            inner.weight = torch.nn.Parameter(inner.weight.detach().clone())
            optimizer.param_groups[0]["params"][0] = inner.weight
        before = [param.clone() for param in model.parameters()]
        try:
            step(amp, model, optimizer)
        finally:
            assert all(map(torch.equal, before, model.parameters()))

    return run


def extended_shards(how, owned):
    """A layer comes into a sharded model, and its parameters into the optimizer or not."""

    def run(rank):
        from torch.distributed.fsdp import fully_shard

        model, over, extra = torch.nn.Sequential(linear(), linear()), mesh(), linear()
        for each in (*model, model):
            fully_shard(each, mesh=over)
        amp, model, optimizer = prepare(model)
        step(amp, model, optimizer)
        if how == "sharded":
            fully_shard(extra, mesh=over)
        if how == "exchanged":
            model[1] = extra
        else:
            model.append(extra)
        if owned:
            optimizer.add_param_group({"params": list(extra.parameters())})
        before = [param.clone() for param in map(whole, model.parameters())]
        try:
            step(amp, model, optimizer)
        finally:
            unchanged = list(map(torch.equal, before, map(whole, model.parameters())))
            assert not any(unchanged) if how == "sharded" and owned else all(unchanged)

    return run


def whole(param):
    return param.full_tensor() if hasattr(param, "full_tensor") else param


def extended_before(rank):
    """A layer comes into a wrapped model before that is prepared."""
    model = ddp()
    model.module.add_module("extra", linear())
    model.module.register_forward_hook(lambda module, _args, output: module.extra(output))
    step(*prepare(model))


def wrapped_anew(rank):
    """What the message says to do."""
    amp, model, optimizer = prepare(ddp())
    inner = model.module
    inner.add_module("extra", linear())
    inner.register_forward_hook(lambda module, _args, output: module.extra(output))
    optimizer.add_param_group({"params": list(inner.extra.parameters())})
    again, optimizer = amp.prepare(torch.nn.parallel.DistributedDataParallel(inner), optimizer)
    step(amp, again, optimizer)
    assert amp.applied_steps == 1


def left_out(rank):
    """Rank 1 makes three steps of eight."""
    step_counts.PATIENCE = timedelta(seconds=0.5)
    amp, model, optimizer = prepare(ddp(), loss_scale="none")
    for index in range(8):
        amp.backward(lambda: model(torch.ones(1, 2)).sum(), optimizer)
        if not rank or index < 3:
            amp.step(optimizer)


def in_no_sync(once=False, **options):
    """A whole step inside ``no_sync``, or the first of two micro-batches."""

    def run(rank):
        policy = "bfloat16" if options.get("master_weights") else "float32"
        amp, model, optimizer = prepare(ddp(), policy=policy, **options)
        before = [param.clone() for param in model.parameters()]
        try:
            with model.no_sync():
                step(amp, model, optimizer)
            if once:
                step(amp, model, optimizer)
        finally:
            assert all(map(torch.equal, before, model.parameters()))

    return run


CASES = {
    "no_sync": (in_no_sync(), "Linear ran inside no_sync() of its DistributedDataParallel"),
    "no_sync without a scale": (in_no_sync(loss_scale="none"), "ran inside no_sync() of its DistributedDataParallel"),
    "no_sync, master weights": (
        in_no_sync(once=True, master_weights=True, accumulate_steps=2),
        "amp.scale_loss with master weights: the last",
    ),
    "added": (
        extended("added"),
        "'extra.bias' came into the model after DistributedDataParallel wrapped",
    ),
    "shards, added": (extended_shards("added", True), "'2.bias' came into the model after fully_shard sharded it"),
    "shards, unowned": (extended_shards("added", False), "'2.bias' came into the model after fully_shard sharded it"),
    "shards, exchanged": (
        extended_shards("exchanged", True),
        "'1.weight', '1.bias' came into the model after fully_shard sharded it",
    ),
    "shards, sharded": (extended_shards("sharded", False), "no optimizer of the session has them"),
    "before prepare": (extended_before, "'extra.bias' came into the model after DistributedDataParallel wrapped"),
    "exchanged": (extended("exchanged"), "'weight' came into the model after DistributedDataParallel wrapped"),
    "policy": (different(policy=("float32", "mixed_bfloat16")), "and policy is float32"),
    "scale": (different(loss_scale=(8.0, 16.0)), "loss_scale is"),
    "accumulate": (different(accumulate_steps=(1, 2)), "accumulate_steps is 1 on rank 0 and 2 on rank 1"),
    "gathered": (gathered, "2 of the 2 parameters of SGD belong to no prepared model"),
    "sharded late": (sharded_late, "fully_shard"),
    "wrapped late": (wrapped_late, "DistributedDataParallel"),
    "without a wrapper": (without_a_wrapper, "initial_scale=8.0) on rank 0 and dynamic(initial_scale=16.0) on rank 1"),
    "loaded on one": (loaded_on_one, "the present loss scale is 32 on rank 0 and 8 on rank 1; load the session's"),
    "group of one": (group_of_one, "with which rank"),
    "other mode": (other_mode, "the memory layout of parameters is channels last on rank 0 and as made on rank 1"),
    "other shards": (other_shards, "shape (2, 2), sharded over 2 ranks"),
}


def own_windows(rank):
    """A micro-batch inside ``no_sync`` and a last one outside, for one step: differentiated one by one, or together."""
    amp, model, optimizer = prepare(ddp())
    for together in (False, True):
        with model.no_sync():
            with amp.autocast():
                first = model(torch.full((1, 2), 1.0 + rank)).sum()
            if not together:
                with amp.scale_loss(first, optimizer) as scaled_loss:
                    scaled_loss.backward()
        with amp.autocast():
            last = model(torch.full((1, 2), 2.0)).sum()
        with amp.scale_loss(first + last if together else last, optimizer) as scaled_loss:
            scaled_loss.backward()
        assert amp.step(optimizer).applied
    weight = [linear().weight - 0.1 * 2 * (1.5 + 2.0), model.module.weight]
    torch.testing.assert_close(*weight)


def refusals(rank):
    found = {}
    others = {"wrapped anew": wrapped_anew, "own windows": own_windows, "left out": left_out}
    others["sharded anew"] = extended_shards("sharded", True)
    for name, case in {**{name: case for name, (case, _) in CASES.items()}, **others}.items():
        try:
            case(rank)
            found[name] = "nothing"
        except ua.AmpError as error:
            found[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            found[name] = f"not ours: {type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def refused():
    return checked(run_ranks(refusals))


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_are_told(refused, name):
    for rank in refused:
        kinds = "PrepareError: amp.", "CheckpointError: Adam.load_state_dict", "StepOrderError: amp."
        assert rank[name].startswith(kinds)
        assert CASES[name][1] in rank[name]


def test_a_rank_that_leaves_steps_out_is_noticed(refused):
    expected = "StepOrderError: amp.step: rank 0 has come to step 8, and rank 1 has not made 4 steps: "
    assert refused[0]["left out"].startswith(expected)
    assert refused[1]["left out"] == "nothing"


def test_windows_of_the_users_own_train(refused):
    assert [rank["own windows"] for rank in refused] == ["nothing", "nothing"]


@pytest.mark.parametrize("name", ["wrapped anew", "sharded anew"])
def test_a_layer_trains_that_is_wrapped_or_sharded_as_well(refused, name):
    assert [rank[name] for rank in refused] == ["nothing", "nothing"]
