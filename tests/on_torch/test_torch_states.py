"""``state_dtype`` on torch: the reference's bits, native states that move, memory, and what is refused."""

import copy

import numpy as np
import pytest
import torch

import unifiedamp as ua
from unifiedamp.backend import rounding, state_rounding
from unifiedamp_torch.training import moment_rounding


def mlp(width=48):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 4))


def prepared(policy, make=torch.optim.AdamW, model=None, **options):
    amp = ua.Amp("torch", policy, device="cpu", **options)
    model = mlp() if model is None else model
    return amp, *amp.prepare(model, make(model.parameters(), lr=2.0**-7))


def backward(amp, model, optimizer, seed):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))

    def loss():
        out = model(x.to(next(model.parameters()).dtype)).float()
        return (out - x[:, :4].sin()).square().mean()

    return amp.backward(loss, optimizer)


def feed(amp, model, optimizer, seed):
    loss = backward(amp, model, optimizer, seed)
    amp.step(optimizer)
    return loss.item()


def moments(amp):
    return amp.backend.optimizer_states.read()[0]


@pytest.mark.parametrize("squares", [False, True])
def test_float8_bits_of_the_reference(squares):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(7, 100)) * np.exp(9 * rng.normal(size=(7, 100)))).astype(np.float32)
    values[0, :5] = [0.0, -0.0, np.inf, np.nan, 1e-42]
    values = values * values if squares else values
    codes, scales = state_rounding.pack(values, squares, 5, rounding.step_key(3, 1))
    found, blocks = moment_rounding.pack(torch.from_numpy(values), squares, 5, rounding.step_key(3, 1))
    np.testing.assert_array_equal(found.view(torch.uint8).numpy(), codes)
    np.testing.assert_array_equal(blocks.numpy(), scales)
    again = moment_rounding.unpack(found, blocks, squares)
    np.testing.assert_array_equal(again.numpy(), state_rounding.unpack(codes, scales, squares, values.shape))
    kept = moment_rounding.unpack(*moment_rounding.pack(again, squares, 6, 7), squares)
    torch.testing.assert_close(kept, again, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(again.bfloat16().float(), again, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("squares", [False, True])
def test_float8_is_right_on_average(squares):
    """5 standard deviations of the mean of 600, whose neighbours are at most an eighth (squares: 0.27) apart."""
    values = torch.linspace(1.0, 4.0, 256)
    kept = [moment_rounding.unpack(*moment_rounding.pack(values, squares, 5, step), squares) for step in range(600)]
    found = torch.stack(kept).double().mean(0)
    apart = 0.27 if squares else 0.125
    assert ((found - values) / values).abs().max() < 5 * apart / 2 / 600**0.5
    tiny = torch.full((256,), 1e-30).index_fill(0, torch.tensor([0]), 1.0)
    assert (moment_rounding.unpack(*moment_rounding.pack(tiny, True, 5, 0), True) > 0).all()


def test_bytes_of_weights_gradients_and_states():
    """At least 35 % fewer than with float32 masters, and than with float32 parameters; every tensor is counted."""

    def counted(policy, **options):
        amp, model, optimizer = prepared(policy, **options)
        for seed in range(2):
            feed(amp, model, optimizer, seed)
        backward(amp, model, optimizer, 2)
        amp.gradients(optimizer)  # with masters, moves them there
        trained = [param for group in optimizer.param_groups for param in group["params"]]
        tensors = {id(each): each for each in [*model.parameters(), *trained]}
        tensors |= {id(each.grad): each.grad for each in [*tensors.values()] if each.grad is not None}
        state = [each for one in optimizer.state.values() for each in one.values() if each.dim()]
        rests = amp.backend.weight_updates._prepared.compensations.all().values()
        count = sum(param.numel() for param in model.parameters())
        return sum(each.nbytes for each in [*tensors.values(), *state, *rests]) / count

    kept = counted("bfloat16;update=kahan;state_dtype=bfloat16")
    assert kept == 2 + 2 + 2 + 2 * 2
    assert counted("bfloat16", master_weights=True) == 2 + 4 + 4 + 2 * 4
    assert counted("mixed_bfloat16") == 4 + 4 + 2 * 4
    assert kept <= 0.65 * counted("mixed_bfloat16")
    assert counted("bfloat16;update=kahan;state_dtype=float8") < 8.2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_native_states_move_to_sessions_without_it_and_back(dtype):
    first = prepared(f"float32;state_dtype={dtype}")
    for seed in range(3):
        feed(*first, seed)
    saved = copy.deepcopy(first[2].state_dict())
    wanted = moments(first[0])
    plain = prepared("float32")
    plain[1].load_state_dict(first[1].state_dict())
    plain[2].load_state_dict(saved)
    state = plain[2].state[next(plain[1].parameters())]
    assert {name: each.dtype for name, each in state.items()} == dict.fromkeys(
        ("step", "exp_avg", "exp_avg_sq"), torch.float32
    )
    np.testing.assert_array_equal(state["exp_avg"].numpy(), wanted["0.weight/first_moment"])
    np.testing.assert_array_equal(state["exp_avg_sq"].numpy(), wanted["0.weight/second_moment"])
    feed(*plain, 3)
    back = prepared(f"float32;state_dtype={dtype}")
    back[1].load_state_dict(plain[1].state_dict())
    back[2].load_state_dict(plain[2].state_dict())
    feed(*back, 4)
    assert back[0].backend.optimizer_states.nbytes() == first[0].backend.optimizer_states.nbytes()


def test_it_goes_on_bit_for_bit_from_native_states():
    straight, first, second = (prepared("bfloat16;update=kahan;state_dtype=float8") for _ in range(3))
    for seed in range(6):
        feed(*straight, seed)
        if seed == 3:
            second[0].load_master_weights(second[1], first[0].master_weights(first[1]))
            second[2].load_state_dict(first[2].state_dict())
            second[0].load_state_dict(first[0].state_dict())
        feed(*(first if seed < 3 else second), seed)
    one, other = moments(straight[0]), moments(second[0])
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_several_optimizers_groups_windows_clipping_and_averages():
    """Each optimizer's random numbers are those it has alone."""

    def run(dtype):
        amp = ua.Amp("torch", "float32" + dtype, device="cpu", accumulate_steps=2)
        model = mlp()
        groups = [{"params": [param]} for param in model[0].parameters()]
        optimizers = torch.optim.AdamW(groups, lr=2.0**-8), torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
        model, *optimizers = amp.prepare(model, *optimizers)
        ema = amp.ema(model, 0.5)
        for seed in range(40):
            backward(amp, model, optimizers, seed)
            for optimizer in optimizers:
                amp.clip_grad_norm(optimizer, 1.0)
                amp.step(optimizer)
        weights = np.concatenate([each.ravel() for each in ema.weights().values()])
        return amp, weights

    (amp, kept), (_, wide) = run(";state_dtype=bfloat16"), run("")
    assert amp.backend.optimizer_states.steps() == [20, 20]
    assert amp.state_dict()["states"]["steps"] == [20, 20]
    assert 0 < np.abs(kept - wide).max() < 0.02


def test_closing_gives_float32_moments_back():
    amp, model, optimizer = prepared("float32;state_dtype=float8")
    feed(amp, model, optimizer, 0)
    with pytest.raises(ua.StepOrderError, match="the session keeps the moments; call amp.step"):
        optimizer.step()
    wanted = moments(amp)["0.weight/first_moment"]
    amp.close()
    state = optimizer.state[next(model.parameters())]
    assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
    np.testing.assert_array_equal(state["exp_avg"].numpy(), wanted)
    optimizer.step()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_the_loss_is_not_above_that_of_float32_states(dtype):
    """The mean of the last 120 of 240 losses, on the same batches; the benchmark trains longer."""

    def last(policy):
        run = prepared(policy)
        losses = [feed(*run, seed) for seed in range(240)]
        return np.mean(losses[120:])

    assert last(f"float32;state_dtype={dtype}") < 1.02 * last("float32")


def test_what_is_refused():
    with pytest.raises(ua.PrepareError, match=r"Adagrad are not known; use one of torch.optim's Adam, "):
        prepared("float32;state_dtype=bfloat16", torch.optim.Adagrad)

    class Mine(torch.optim.AdamW):
        """A user's own."""

    with pytest.raises(ua.PrepareError, match="moments of this Mine are not known"):
        prepared("float32;state_dtype=float8", Mine)
    with pytest.raises(ua.PolicyError, match="use policy 'bfloat16;update=kahan;state_dtype=float8'"):
        ua.Amp("torch", "bfloat16;state_dtype=float8", device="cpu")

    table = torch.nn.Embedding(10, 4, sparse=True)
    amp, model, optimizer = prepared("float32;state_dtype=bfloat16", torch.optim.SGD, table)
    amp.backward(lambda: model(torch.tensor([1, 2])).sum(), optimizer)
    before = table.weight.detach().clone()
    with pytest.raises(ua.UnsupportedError, match="gradient of this SGD is sparse"):
        amp.step(optimizer)
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("update", ["kahan", "stochastic"])
def test_states_of_rounded_weights_stay_float32_when_they_are_loaded(update):
    """torch casts a state to its parameter's dtype; a run goes on by the bits that were saved."""
    first, second = (prepared(f"bfloat16;update={update}") for _ in range(2))
    for seed in range(3):
        feed(*first, seed)
    saved, weights = copy.deepcopy(first[2].state_dict()), first[0].master_weights(first[1])
    second[0].load_master_weights(second[1], weights)
    second[2].load_state_dict(saved)
    second[0].load_state_dict(first[0].state_dict())
    for one, other in zip(*(run[1].parameters() for run in (first, second)), strict=True):
        for name, value in first[2].state[one].items():
            found = second[2].state[other][name]
            assert found.dtype is value.dtype is torch.float32
            assert torch.equal(found, value)
    for seed in (3, 4):
        assert feed(*first, seed) == feed(*second, seed)
