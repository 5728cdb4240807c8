"""What ranks must not do, tried by two gloo processes: each is an error that names the object and what to do."""

import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua


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


CASES = {
    "policy": (different(policy=("float32", "mixed_bfloat16")), "and policy is float32"),
    "scale": (different(loss_scale=(8.0, 16.0)), "loss_scale is"),
    "accumulate": (different(accumulate_steps=(1, 2)), "accumulate_steps is 1 on rank 0 and 2 on rank 1"),
    "gathered": (gathered, "2 of the 2 parameters of SGD belong to no prepared model"),
    "sharded late": (sharded_late, "fully_shard"),
    "wrapped late": (wrapped_late, "DistributedDataParallel"),
}


def refusals(rank):
    found = {}
    for name, (case, _) in CASES.items():
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
        assert rank[name].startswith("PrepareError: amp.")
        assert CASES[name][1] in rank[name]
