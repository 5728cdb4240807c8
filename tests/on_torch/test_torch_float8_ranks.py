"""float8 over two gloo processes: one history and one scale of an operand on all ranks, under DDP and FSDP2."""

import json
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks

from unifiedamp.conformance import float8 as kit

DELAYED = "mixed_float8;recipe=delayed;amax_history=4;emulate=true"
SIZE, STEPS = 32, 3
INPUTS = [(1.0, 4.0), (8.0, 2.0), (0.5, 0.25)]
"""The largest magnitude of the inputs of each rank, in each step."""


def wrapped(model, wrap):
    if wrap == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if wrap == "shard":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (2,))
        for each in (*(each for each in model if isinstance(each, torch.nn.Linear)), model):
            fully_shard(each, mesh=mesh)
    return model


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, SIZE))


def rows(step, rank, size=16):
    """Inputs and targets of a rank; those of one process are both ranks'."""
    generator = np.random.default_rng(10 * step + rank)
    x = generator.uniform(-0.9, 0.9, (size, SIZE))
    x[0, 0] = 1.0
    return torch.from_numpy(x * INPUTS[step % 3][rank]).float(), torch.from_numpy(generator.normal(size=(size, SIZE)))


def both(step):
    return tuple(torch.cat(each) for each in zip(rows(step, 0), rows(step, 1), strict=True))


def prepared(policy, wrap, lr=0.01, **options):
    amp = session(policy, **options)
    model = wrapped(mlp(), wrap)
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=lr))


def feed(amp, model, optimizer, x, y):
    def loss():
        return (model(x).float() - y.float()).square().mean()

    amp.backward(loss, optimizer)
    amp.step(optimizer)


def histories(amp):
    return {name.removeprefix("module."): each.tolist() for name, each in amp.backend.amax_history.read().items()}


GATHERS = {"gather": {"backend_options": {"torch": {"float8_all_gather": True}}}}


def delayed(rank, wrap):
    """Train; return histories, scales and weights, and those of a session that loads what rank 0 saved."""
    options, wrap = GATHERS.get(wrap, {}), {"gather": "shard"}.get(wrap, wrap)
    amp, model, optimizer = prepared(DELAYED, wrap, **options)
    reductions = []
    reduce = dist.all_reduce

    def noted(tensor, *args, **kwargs):
        reductions[-1].append(tensor.numel())
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = noted
    for step in range(STEPS):
        reductions.append([])
        feed(amp, model, optimizer, *rows(step, rank))
    dist.all_reduce = reduce
    saved = [json.dumps(amp.state_dict())]
    dist.broadcast_object_list(saved, 0)
    weights = {name.removeprefix("module."): each for name, each in amp.master_weights(model).items()}
    other, twin, _ = prepared(DELAYED, wrap, **options)
    other.load_master_weights(twin, amp.master_weights(model))
    other.load_state_dict(json.loads(saved[0]))
    x = rows(STEPS, rank)[0]
    outputs = []
    for each, network in ((amp, model), (other, twin)):
        with each.inference(network):
            outputs.append(network(x))
    return histories(amp), weights, torch.equal(*outputs), reductions


@pytest.fixture(scope="module")
def alone():
    amp, model, optimizer = prepared(DELAYED, None)
    for step in range(STEPS):
        feed(amp, model, optimizer, *both(step))
    return histories(amp), amp.master_weights(model)


@pytest.mark.parametrize("wrap", ["ddp", "shard", "gather"])
def test_a_history_is_the_maximum_over_the_ranks(alone, wrap):
    first, second = checked(run_ranks(delayed, wrap))
    assert first[0] == second[0]
    assert first[0].keys() == {"0", "2"}
    expected = [max(each) for each in INPUTS[::-1]]
    assert first[0]["0"][0] == expected
    for name, history in first[0].items():
        for row, (found, wanted) in enumerate(zip(history, alone[0][name], strict=True)):
            # A rank's loss is the mean over half the batch: twice the gradients.
            np.testing.assert_allclose(found, np.multiply(wanted, 2.0 if row == 2 else 1.0), rtol=2e-2)
    for name, weight in alone[1].items():
        np.testing.assert_array_equal(first[1][name], second[1][name])
        np.testing.assert_allclose(first[1][name], weight, atol=2**-8)
    assert first[2]
    assert second[2], "what rank 0 saved is right for all"
    # Six operands; in the first iteration also which of the two layers have run.
    assert [each[-1:] for each in first[3]] == [[8], [6], [6]]
    assert [sum(count in (6, 8) for count in each) for each in first[3]] == [1, 1, 1]


class Branched(torch.nn.Module):
    """A model with a frozen layer that its forward pass does not run."""

    def __init__(self):
        super().__init__()
        self.main, self.extra = mlp(), torch.nn.Linear(SIZE, SIZE).requires_grad_(False)

    def forward(self, x):
        return self.main(x)


def on_one_rank(rank):
    """Rank 0 alone runs the layer, and rank 1 alone meets nan; return histories and what the layer computes then."""
    amp = session(DELAYED)
    model = torch.nn.parallel.DistributedDataParallel(Branched())
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.module.main.parameters(), lr=0.01))
    probe = rows(0, 0)[0]
    with amp.autocast():
        if not rank:
            model.module.extra(7.3 * probe)
    feed(amp, model, optimizer, *rows(0, rank))
    with amp.inference(model):
        found = model.module.extra(probe)
    with amp.autocast():
        if rank:
            model.module.main(torch.full((16, SIZE), math.nan))
    feed(amp, model, optimizer, *rows(1, rank))
    return histories(amp), found.double().numpy()


def test_what_one_rank_alone_has_seen_counts_on_all():
    (first, output), (second, other) = checked(run_ranks(on_one_rank))
    assert first == second
    np.testing.assert_array_equal(output, other)
    assert first["extra"][0] == [pytest.approx(7.3)]
    assert first["main.0"][0] == [4.0, 0.0], "an amax that is not finite is dropped on all ranks"
    assert all(first["main.0"][1])


def begun_anew(rank):
    """Train twice from a state without histories; return histories and what a layer computes after each time.

    Rank 0 runs the layer in the second iteration, so that both scale it by that iteration's history from there on.
    """
    amp = session(DELAYED)
    model = torch.nn.parallel.DistributedDataParallel(Branched())
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.module.main.parameters(), lr=0.0))
    probe, state, found = rows(0, 0)[0], json.dumps(amp.state_dict()), []
    for _ in range(2):
        feed(amp, model, optimizer, *rows(0, rank))
        with amp.autocast():
            if not rank:
                model.module.extra(probe)
        feed(amp, model, optimizer, *rows(1, rank))
        with amp.inference(model):
            found.append((histories(amp), model.module.extra(64 * probe).tolist()))
        amp.load_state_dict(json.loads(state))
    return found, model.module.extra(probe.clamp(-1, 1)).detach().abs().max().item()


def test_ranks_that_load_a_state_without_histories_begin_anew():
    for answers, largest in checked(run_ranks(begun_anew)):
        (before, output), (after, again) = answers
        assert before == after
        assert before["extra"][0] == [1.0]
        assert output == again
        assert np.abs(output).max() < 2 * largest, "by the history, inputs 64 times as large saturate"


def tensorwise(rank, how):
    """Return what a sharded layer computes of known inputs, and the gradient of these."""
    amp = session("mixed_float8;emulate=true", **GATHERS.get(how, {}))
    model = wrapped(torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE, bias=False)), None)
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(known_weight()))
    model = wrapped(model, "shard")
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = rows(0, 0)[0].requires_grad_()
    with amp.autocast():
        out = model(x)
    out.backward(rows(1, 0)[0].to(out.dtype))
    return model[0].weight.to_local().shape[0], out.detach().double().numpy(), x.grad.double().numpy()


def known_weight():
    """A weight whose second half, which rank 1 holds, is small: with a scale for each shard it would lose nothing."""
    values = np.random.default_rng(7).uniform(-1, 1, (SIZE, SIZE))
    values[SIZE // 2 :] *= 2.0**-13
    return values.astype(np.float32)


def scaled(values, format_):
    scale = float(np.float32(format_.largest) / np.float32(np.abs(values).max()))
    return format_.round(np.clip(values * scale, -format_.largest, format_.largest)) / scale


@pytest.mark.parametrize("how", ["shard", "gather"])
def test_the_scale_of_a_sharded_weight_is_that_of_the_whole_weight(how):
    x, weight = rows(0, 0)[0].double().numpy(), known_weight().astype(np.float64)
    grad = rows(1, 0)[0].bfloat16().double().numpy()
    w8 = scaled(weight, kit.E4M3)
    out, dx = scaled(x, kit.E4M3) @ w8.T, scaled(grad, kit.E5M2) @ w8
    by_shard = np.concatenate([scaled(half, kit.E4M3) for half in np.split(weight, 2)])
    assert np.abs(by_shard - w8)[SIZE // 2 :].max() > 2.0**-4 * np.abs(weight[SIZE // 2 :]).max()
    for held, found, gradient in checked(run_ranks(tensorwise, how)):
        assert held == SIZE // 2
        np.testing.assert_allclose(found, out, rtol=2.0**-8, atol=2.0**-26)  # of bfloat16 results
        np.testing.assert_allclose(gradient, dx, rtol=2.0**-8, atol=2.0**-20)
