"""The order of calls, without a framework."""

from types import SimpleNamespace

import pytest

import unifiedamp as ua
from unifiedamp.training.step_order import StepOrder


def order(count=1, accumulate_steps=1):
    made = StepOrder(accumulate_steps)
    for _ in range(count):
        made.bind(SimpleNamespace())
    return made, list(made.slots.values())


def stepped(made, slot):
    made.begin_step(slot.optimizer, "step")
    if made.accumulating(slot):
        made.end_micro_batch(slot)
    else:
        made.end_step(slot, made.ends_iteration(slot))


def test_one_region_serves_the_losses_of_a_new_iteration():
    """The first of them ends the iteration before."""
    made, (first, second) = order(2)
    made.enter_region()
    made.begin_scale([first])
    stepped(made, first)
    made.enter_region()
    assert made.begin_scale([first])
    assert not made.begin_scale([second])
    assert made.ended == 1


def test_a_second_step_in_an_iteration_is_refused():
    made, (first, second) = order(2)
    made.enter_region()
    made.begin_scale([first, second])
    stepped(made, first)
    with pytest.raises(ua.StepOrderError, match="it has already had its step in this iteration"):
        made.begin_step(first.optimizer, "step")
    stepped(made, second)
    assert made.idle()


def test_an_optimizer_without_a_loss_may_step_beside_one_that_has():
    made, (first, second) = order(2)
    made.enter_region()
    made.begin_scale([first])
    stepped(made, second)
    with pytest.raises(ua.StepOrderError):
        made.begin_step(second.optimizer, "step")
    stepped(made, first)
    with pytest.raises(ua.StepOrderError):
        made.begin_step(second.optimizer, "step")


def test_micro_batches_of_several_optimizers_share_a_region():
    made, (first, second) = order(2, accumulate_steps=2)
    made.enter_region()
    made.begin_scale([first])
    stepped(made, first)
    made.begin_scale([second])
    stepped(made, second)
    assert (first.micro, second.micro) == (1, 1)


def test_each_micro_batch_of_one_optimizer_needs_a_region():
    made, (slot,) = order(accumulate_steps=2)
    made.enter_region()
    made.begin_scale([slot])
    stepped(made, slot)
    with pytest.raises(ua.StepOrderError, match="no loss was computed under the policy"):
        made.begin_scale([slot])


def test_what_was_unscaled_takes_no_more_losses():
    made, (slot,) = order()
    made.enter_region()
    made.begin_scale([slot])
    slot.unscaled = True
    with pytest.raises(ua.StepOrderError, match="already unscaled"):
        made.begin_scale([slot])
    stepped(made, slot)
    made.enter_region()
    made.begin_scale([slot])


def test_binding_again_keeps_what_was_done():
    made, (slot,) = order(accumulate_steps=3)
    made.enter_region()
    made.begin_scale([slot])
    stepped(made, slot)
    made.bind(slot.optimizer)
    assert [(each.index, each.micro) for each in made.slots.values()] == [(0, 1)]
    made.bind(SimpleNamespace())
    assert [each.index for each in made.slots.values()] == [0, 1]


def test_a_snapshot_holds_the_whole_state():
    made, (first, second) = order(2, accumulate_steps=2)
    made.enter_region()
    made.begin_scale([first])
    stepped(made, first)
    first.unscaled = True
    taken = made.snapshot()
    made.reset()
    assert made.snapshot() != taken
    assert made.pending() == []
    made.restore(taken)
    assert made.snapshot() == taken
    assert made.pending() == [first.optimizer]
    assert not made.accumulating(first)
    assert made.accumulating(second)
    second.refusal = "what to do"
    with pytest.raises(ua.StepOrderError, match="what to do"):
        made.begin_scale([first, second])
    assert made.snapshot() == taken


def test_only_an_order_between_two_iterations_is_idle():
    made, (slot,) = order()
    assert made.idle()
    made.enter_region()
    assert not made.idle()
    made.begin_scale([slot])
    assert not made.idle()
    stepped(made, slot)
    assert made.idle()
    made, (slot,) = order(accumulate_steps=2)
    made.enter_region()
    made.begin_scale([slot])
    stepped(made, slot)
    assert not made.idle(), "half of its window"
