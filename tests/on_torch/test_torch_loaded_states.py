"""A state that ranks load in the middle of training: the same on all, or the step after it is not applied.

Two processes joined by gloo.
"""

from datetime import timedelta

import pytest
import torch
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua
from unifiedamp_torch.distributed import loaded

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=4)


def made(how, **options):
    torch.manual_seed(0)
    inner = torch.nn.Linear(2, 2)
    model = torch.nn.parallel.DistributedDataParallel(inner) if how != "unwrapped" else inner
    amp = session(loss_scale=SCALE, **options)
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=how == "on device"))


def options_of(how):
    return {"backend_options": {"torch": {"scale_on_device": True}}} if how == "on device" else {}


def micro_batch(amp, model, optimizer):
    amp.backward(lambda: model(torch.ones(1, 2)).sum(), optimizer)
    return amp.step(optimizer)


def changed(amp, **numbers):
    """Load this session's state with other numbers."""
    state = amp.state_dict()
    amp.load_state_dict({**state, "state": {**state["state"], **numbers}})


def alone(rank, how, numbers):
    """Rank 1 alone loads; return what was said, and whether weights stayed as they were."""
    loaded.PATIENCE = timedelta(seconds=0.3)
    amp, model, optimizer = made(how, **options_of(how))
    for _ in range(2):
        micro_batch(amp, model, optimizer)
    if rank:
        changed(amp, **numbers)
    before = [param.clone() for param in model.parameters()]
    said = "nothing"
    try:
        for _ in range(100):
            micro_batch(amp, model, optimizer)
    except ua.AmpError as error:
        said = f"{type(error).__name__}: {error}"
    same = all(map(torch.equal, before, model.parameters()))
    changed(amp, scale=4.0, good_steps=0)  # on both ranks, as the message says
    return said, same, micro_batch(amp, model, optimizer).applied, amp.loss_scale


@pytest.mark.parametrize("numbers", [{"scale": 32.0}, {"good_steps": 0}], ids=["scale", "count"])
@pytest.mark.parametrize("how", ["ddp", "unwrapped", "on device"])
def test_a_state_that_one_rank_loads_is_refused_on_all(how, numbers):
    for said, same, applied, scale in checked(run_ranks(alone, how, numbers)):
        assert said.startswith("CheckpointError: amp.load_state_dict: rank 1 loaded a state (the present loss scale is")
        loaded = {"scale": 8.0, "good_steps": 2} | numbers
        assert f"is {loaded['scale']:g}, the number of good steps in a row is {loaded['good_steps']}," in said
        assert "after the first step, and rank 0 did not: their" in said
        assert same
        assert (applied, scale) == (True, 4.0)


def together(rank, scales):
    """Both load, at different places before the same step; return what the steps after did."""
    amp, model, optimizer = made("ddp", accumulate_steps=2)
    for _ in range(4):
        micro_batch(amp, model, optimizer)
    if rank:
        micro_batch(amp, model, optimizer)
    changed(amp, scale=scales[rank])
    if not rank:
        changed(amp, scale=scales[rank])  # twice before the same step
    try:
        applied = [micro_batch(amp, model, optimizer).applied for _ in range(4)]
    except ua.PrepareError as error:
        return str(error)
    return applied, amp.loss_scale, [param.tolist() for param in model.parameters()]


def test_a_state_that_all_ranks_load_before_the_same_step_is_trained_on():
    first, second = checked(run_ranks(together, (32.0, 32.0)))
    assert first == second
    assert first[:2] == ([False, True, False, True], 64.0)  # grown: two good steps before, and two after


def test_states_that_differ_are_refused_on_all_ranks():
    said = run_ranks(together, (32.0, 16.0))
    assert said[0] == said[1]
    assert (
        "amp.load_state_dict: ranks that train together need the same settings, and the present loss scale is 32 on"
        in said[0]
    )


def late(rank):
    """Rank 1 loads after rank 0 has given up waiting: one step is skipped, on both."""
    loaded.PATIENCE = timedelta(seconds=0.3)
    amp, model, optimizer = made("ddp")
    for _ in range(2):  # DistributedDataParallel communicates in the second forward pass
        micro_batch(amp, model, optimizer)
    if rank:
        torch.distributed.distributed_c10d._get_default_store().wait(["gone on"])
    changed(amp, scale=32.0)
    if not rank:
        loaded.PATIENCE = timedelta(seconds=0.01)
        given_up = loaded.Meeting.give_up
        loaded.Meeting.give_up = lambda self, values: (given_up(self, values), self._store.set("gone on", ""))
    applied = [micro_batch(amp, model, optimizer).applied for _ in range(2)]
    return applied, amp.loss_scale, [param.tolist() for param in model.parameters()]


def test_a_rank_that_loads_late_costs_a_skipped_step():
    first, second = checked(run_ranks(late))
    assert first == second
    assert first[:2] == ([False, True], 16.0)
