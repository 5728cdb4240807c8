"""Two gloo processes: one decision on both, models that torch.distributed wraps or shards, compiled steps."""

import math
import warnings

import numpy as np
import pytest
import torch
from loops import batch, mlp, pretend_reads_sync, session
from ranks import run_ranks

import unifiedamp as ua


def skips(rank, fused):
    if fused:
        pretend_reads_sync(pytest.MonkeyPatch())
    amp = session(loss_scale=ua.DynamicLossScale(initial_scale=4.0))
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=fused))
    applied = []
    for bad in (False, True, False):
        x = torch.full((1, 1), float("inf") if bad and rank == 0 else 1.0)
        amp.backward(lambda x=x: model(x).sum(), optimizer)
        applied.append(amp.step(optimizer).applied)
    return applied, model.weight.item(), amp.loss_scale


@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_skip_when_one_overflows(fused):
    assert run_ranks(skips, fused) == [([True, False, True], pytest.approx(0.8), 2.0)] * 2


def train(amp, model, optimizer, rows, steps=3):
    """Train on ``rows`` of each batch; return the last norm."""
    for index in range(steps):
        x, y = batch(index)
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        norm = amp.clip_grad_norm(optimizer, 0.5)
        assert amp.step(optimizer).applied
    return norm


def alone(policy, masters, dtype):
    """The same training by one process."""
    amp = session(policy, loss_scale=1024.0, master_weights=masters)
    model = mlp().to(dtype)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    norm = train(amp, model, optimizer, slice(None))
    return float(amp.to_numpy(norm)), amp.master_weights(model)


def sharded(rank, policy, masters, dtype):
    from torch.distributed.fsdp import fully_shard

    amp = session(policy, loss_scale=1024.0, master_weights=masters)
    model = mlp().to(dtype)
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    norm = train(amp, model, optimizer, slice(16 * rank, 16 * rank + 16))
    found = float(amp.to_numpy(norm)), amp.master_weights(model)
    amp.load_master_weights(model, {name: array + 1 for name, array in found[1].items()})
    assert all((array == found[1][name] + 1).all() for name, array in amp.master_weights(model).items())
    return found


@pytest.mark.parametrize(
    ("policy", "masters", "dtype"),
    [
        ("float32", False, torch.float32),
        ("bfloat16", True, torch.bfloat16),
    ],
)
def test_fsdp2_trains_and_reads_as_one_process(policy, masters, dtype):
    norm, weights = alone(policy, masters, dtype)
    close = 1e-5 if policy == "float32" else 2.0**-6
    for answer in run_ranks(sharded, policy, masters, dtype):
        assert not isinstance(answer, str), answer
        assert answer[0] == pytest.approx(norm, rel=10 * close)
        assert answer[1].keys() == weights.keys()
        for name, array in weights.items():
            assert answer[1][name] == pytest.approx(array, abs=close)


def casts_late(_rank):
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    with pytest.raises(ua.PrepareError, match=r"cast the model before it is sharded \(model\.to\(torch\.bfloat16\)\)"):
        session("bfloat16").prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return True


def test_what_is_sharded_is_not_cast():
    assert run_ranks(casts_late) == [True, True]


def compiles(rank, mode):
    amp = session("mixed_bfloat16", loss_scale=1024.0, compile=mode)
    inner = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), mlp()[3:])
    inner[-1] = torch.nn.Linear(4 * 6 * 6, 4)
    torch.manual_seed(0)
    inner[-1].reset_parameters()
    inner[0].reset_parameters()
    model = torch.nn.parallel.DistributedDataParallel(inner)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

    def step(x, y):
        amp.backward(lambda: torch.nn.functional.cross_entropy(model(x), y), optimizer)
        return amp.step(optimizer).applied

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = amp.compile(step)
    said = [str(each.message) for each in caught if issubclass(each.category, ua.CompileWarning)]
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)
    applied = [compiled(x, y) for _ in range(3)]
    row = amp.explain().row("compile")
    return compiled is step, said, applied, [float(param.sum()) for param in model.parameters()], row.effect


@pytest.mark.parametrize("mode", ["default", "max"])
def test_a_step_of_several_processes_runs_as_it_is_written(mode):
    first, second = run_ranks(compiles, mode)
    for answer in (first, second):
        assert not isinstance(answer, str), answer
        assert answer[0]
        assert len(answer[1]) == 1
        assert "step runs as it is written, because 2 processes train together" in answer[1][0]
        assert answer[2] == [True] * 3
        assert answer[4] == "no effect"
    assert first[3] == second[3]


def averages(rank, wrap):
    """Train under an average; return it, the sum of what the model holds while it is swapped in, and afterwards."""
    amp = session("mixed_bfloat16", loss_scale=ua.DynamicLossScale(initial_scale=4.0))
    model = mlp()
    if wrap == "shard":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    elif wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema = amp.ema(model, 0.5)
    for index in range(4):
        x, y = batch(index)
        x = x * math.inf if index == 2 and rank == 0 else x
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
    before = {name: array.sum() for name, array in amp.master_weights(model).items()}
    with ema.swapped():
        inside = amp.master_weights(model)
    after = {name: array.sum() for name, array in amp.master_weights(model).items()}
    found = ema.weights()
    same = all((found[name] == inside[name]).all() for name in found)
    amp.load_state_dict(amp.state_dict())
    kept = all((found[name] == array).all() for name, array in ema.weights().items())
    plain = {name.removeprefix("module."): array.tolist() for name, array in found.items()}
    return plain, before == after, same, kept, ema.updates


@pytest.mark.parametrize("wrap", ["ddp", "shard"])
def test_averages_of_models_that_torch_distributed_wraps(wrap):
    """Whole on every rank, equal to those of two processes with whole models."""
    first, second = run_ranks(averages, wrap)
    whole, _ = run_ranks(averages, "ddp")
    for answer in (first, second):
        assert not isinstance(answer, str), answer
        assert answer[1:] == (True, True, True, 3)
        for name, values in answer[0].items():
            np.testing.assert_allclose(values, whole[0][name], rtol=1e-4, atol=1e-5)
