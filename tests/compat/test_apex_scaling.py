"""scale_loss and what optimizer.step() does after it, against Apex's rules in plain Python."""

import math
import random

import pytest

torch = pytest.importorskip("torch")

from apex_loops import LEVELS, backward, grads, ready, step, values, weights  # noqa: E402

import unifiedamp as ua  # noqa: E402
from unifiedamp.compat import apex as amp  # noqa: E402

INF = math.inf


def scaler_state(index=0):
    return amp.state_dict()[f"loss_scaler{index}"]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_are_true_ones_when_the_context_is_left(level):
    model, optimizer = ready(level, loss_scale=1024.0)
    backward(model, optimizer, [0.5, -3.0])
    assert grads(optimizer) == [0.5, -3.0]
    optimizer.step()
    assert values(model.parameters()) == [0.875, 2.75]


@pytest.mark.parametrize("level", LEVELS)
def test_the_loss_that_is_yielded_is_float32_times_the_scale(level):
    model, optimizer = ready(level, loss_scale=4096.0, cast_model_outputs=torch.float16)
    loss = model(torch.tensor([[100.0, 0.0]])).sum()
    assert loss.dtype is torch.float16
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss.dtype is torch.float32
        assert scaled_loss.item() == 100.0 * 4096.0  # more than float16 holds
        scaled_loss.backward()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [INF, -INF, math.nan])
def test_an_overflow_skips_one_step_and_halves_the_scale(level, bad, capsys):
    model, optimizer = ready(level, loss_scale="dynamic", verbosity=1)
    capsys.readouterr()
    step(model, optimizer, [bad, 1.0])
    assert values(model.parameters()) == [1.0, 2.0]
    assert scaler_state() == {"loss_scale": 2.0**15, "unskipped": 0}
    assert capsys.readouterr().out == (
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    )
    step(model, optimizer, [0.5, 0.0])
    assert values(model.parameters()) == [0.875, 2.0]
    assert scaler_state() == {"loss_scale": 2.0**15, "unskipped": 1}


def test_a_skipped_step_leaves_the_optimizer_and_the_scheduler_quiet():
    model = weights(1.0, 2.0)
    optimizer = torch.optim.Adam(model.parameters())
    early = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    model, optimizer = amp.initialize(model, optimizer, verbosity=0)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    step(model, optimizer, [INF, 0.0])
    early.step()  # torch's warning that optimizer.step() was not called would be an error here
    late.step()
    assert not optimizer.state
    step(model, optimizer, [1.0, 0.0])
    assert [each["step"].item() for each in optimizer.state.values()] == [1.0]


def apex_rule(scale, unskipped, overflow, ceiling=2.0**24):
    """Apex's update in plain Python."""
    if overflow:
        return scale / 2.0, 0
    unskipped += 1
    return (min(ceiling, scale * 2.0), 0) if unskipped == 2000 else (scale, unskipped)


@pytest.mark.parametrize("level", LEVELS)
def test_the_scale_moves_as_in_apex_and_as_in_the_reference(level):
    model, optimizer = ready(level, loss_scale="dynamic", lr=0.0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1990}})
    mine, settings = (2.0**16, 1990), ua.DynamicLossScale()
    reference = settings.initial_state().__class__(2.0**16, 1990)
    draw = random.Random(7)
    for index in range(60):
        overflow = index > 15 and draw.random() < 0.2
        step(model, optimizer, [INF if overflow else 2.0**-10, 0.0])
        mine = apex_rule(*mine, overflow)
        reference = settings.next_state(reference, overflow)
        state = scaler_state()
        assert (state["loss_scale"], state["unskipped"]) == mine == (reference.scale, reference.good_steps)
    assert mine[0] < 2.0**14


def test_the_scale_stops_at_its_floor_and_ceiling():
    model, optimizer = ready("O1", min_loss_scale=2.0**15, max_loss_scale=2.0**16)
    for _ in range(3):
        step(model, optimizer, [INF, 0.0])
    assert scaler_state()["loss_scale"] == 2.0**15
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1999}})
    step(model, optimizer, [2.0**-12, 0.0])
    assert scaler_state() == {"loss_scale": 2.0**16, "unskipped": 0}


def test_a_ceiling_below_the_first_scale_is_the_first_scale():
    ready("O1", max_loss_scale=2.0**10)
    assert scaler_state()["loss_scale"] == 2.0**10


# -- more losses than steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("delay", [False, True])
def test_gradients_of_micro_batches_add_up(level, delay):
    model, optimizer = ready(level, loss_scale=64.0)
    for gradient in ([0.5, 1.0], [0.25, -2.0], [1.0, 0.5]):
        backward(model, optimizer, gradient, delay_unscale=delay)
    backward(model, optimizer, [0.0, 1.0])
    assert grads(optimizer) == [1.75, 0.5]
    optimizer.step()
    assert values(model.parameters()) == [1.0 - 0.25 * 1.75, 2.0 - 0.25 * 0.5]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("delay", [False, True])
def test_one_bad_micro_batch_discards_its_window_and_no_other(level, delay):
    model, optimizer = ready(level, loss_scale="dynamic", max_loss_scale=2.0**10)
    backward(model, optimizer, [INF, 1.0], delay_unscale=delay)
    backward(model, optimizer, [0.5, 1.0])
    optimizer.step()
    assert values(model.parameters()) == [1.0, 2.0]
    assert scaler_state()["loss_scale"] == 2.0**9
    backward(model, optimizer, [0.5, 0.0])
    optimizer.step()
    assert values(model.parameters()) == [0.875, 2.0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_window_that_was_given_up_leaves_nothing(level):
    model, optimizer = ready(level, loss_scale="dynamic", max_loss_scale=2.0**10, num_losses=2)
    backward(model, optimizer, [1.0, 1.0], loss_id=0, delay_unscale=True)
    optimizer.zero_grad()
    backward(model, optimizer, [0.5, 0.0], loss_id=1)
    optimizer.step()
    assert values(model.parameters()) == [0.875, 2.0]


@pytest.mark.parametrize("level", LEVELS)
def test_losses_of_different_scales_give_one_optimizer_their_true_sum(level):
    model, optimizer = ready(level, loss_scale="dynamic", num_losses=2)
    amp.load_state_dict(
        {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 0}, "loss_scaler1": {"loss_scale": 512.0, "unskipped": 5}}
    )
    backward(model, optimizer, [0.5, 1.0], loss_id=0)
    backward(model, optimizer, [0.25, -2.0], loss_id=1)
    assert grads(optimizer) == [0.75, -1.0]
    optimizer.step()
    assert values(model.parameters()) == [0.8125, 2.25]
    assert scaler_state(0) == {"loss_scale": 8.0, "unskipped": 1}
    assert scaler_state(1) == {"loss_scale": 512.0, "unskipped": 6}


def two_models(level="O1", **options):
    models = [weights(1.0), weights(1.0)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.25) for model in models]
    return amp.initialize(
        models, optimizers, opt_level=level, verbosity=0, loss_scale="dynamic", max_loss_scale=2.0**10, **options
    )


@pytest.mark.parametrize("level", LEVELS)
def test_each_loss_id_has_its_scale_and_its_optimizer_skips_alone(level):
    models, optimizers = two_models(level, num_losses=2)
    for index, gradient in enumerate([INF, 1.0]):
        backward(models[index], optimizers[index], [gradient], loss_id=index)
    for optimizer in optimizers:
        optimizer.step()
    assert [values(model.parameters()) for model in models] == [[1.0], [0.75]]
    assert scaler_state(0) == {"loss_scale": 2.0**9, "unskipped": 0}
    assert scaler_state(1) == {"loss_scale": 2.0**10, "unskipped": 1}


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_of_two_optimizers_is_skipped_by_both(level):
    models, optimizers = two_models(level)
    loss = (models[0](torch.tensor([[INF]])) + models[1](torch.tensor([[1.0]]))).sum()
    with amp.scale_loss(loss, optimizers) as scaled_loss:
        scaled_loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    assert [values(model.parameters()) for model in models] == [[1.0], [1.0]]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_a_loss_leaves_in_another_model_are_not_its_optimizers(level):
    (first, second), (one, other) = two_models(level)
    loss = second(first(torch.tensor([[1.0]]))).sum()  # as a generator's loss goes through the discriminator
    with amp.scale_loss(loss, one) as scaled_loss:
        scaled_loss.backward()
    one.step()
    other.zero_grad()
    backward(second, other, [0.5])
    other.step()
    assert (values(first.parameters()), values(second.parameters())) == ([0.75], [0.875])


# -- what a level keeps --------------------------------------------------------------------------------------------


def test_o2_keeps_updates_that_16_bits_would_lose():
    small = 2.0**-14  # a quarter of the distance between 16-bit numbers below 1
    steps = {}
    for level in ("O2", "O3"):
        model, optimizer = ready(level, lr=1.0, loss_scale=128.0, start=(1.0, 1.0))
        for _ in range(64):
            step(model, optimizer, [small, 0.0])
        steps[level] = values(model.parameters())[0]
        assert next(model.parameters()).dtype is torch.float16
    assert steps == {"O2": 1.0 - 64 * small, "O3": 1.0}


def test_master_params_are_float32_at_o2_and_clip_the_true_gradients():
    model, optimizer = ready("O2", loss_scale=1024.0)
    backward(model, optimizer, [3.0, 4.0])
    (master,) = amp.master_params(optimizer)
    assert master.dtype is torch.float32
    norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    assert norm.item() == 5.0
    optimizer.step()
    assert values([master]) == pytest.approx([1.0 - 0.25 * 0.6, 2.0 - 0.25 * 0.8], rel=1e-6)
    assert values(model.parameters()) == pytest.approx(values([master]), rel=2.0**-11)


def test_model_zero_grad_is_enough_between_steps():
    model, optimizer = ready("O2", loss_scale=16.0)
    for gradient in ([1.0, 0.0], [0.0, 1.0]):
        model.zero_grad()
        backward(model, optimizer, gradient)
        optimizer.step()
    assert values(model.parameters()) == [0.75, 1.75]
