"""``amp.skip_if`` and ``amp.discard_step`` decide for all ranks. Processes joined by gloo."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks
from torch._subclasses import FakeTensorMode

import unifiedamp as ua
from unifiedamp.loss_scale import ScaleState
from unifiedamp_torch.device import kinds

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)
RATE = 0.5
MOMENTS = [(0, 0), (0, 1), (1, 0), (0, 0), (1, 1), (math.inf, 0), (math.inf, 1), (0, 0)]
"""Whether the condition holds on each rank; inf: its gradient is, and the condition does not hold."""
CASES = [
    ("ddp", "dynamic", True, False), ("ddp", "dynamic", False, True), ("ddp", "none", True, True),
    ("ddp", "none", False, False), ("fsdp", "dynamic", False, True), ("fsdp", "none", False, False),
    ("alone", "dynamic", False, False), ("alone", "none", True, False),
]  # fmt: skip
"""What wraps the model, the loss scale, whether the optimizer is fused, and whether gradients are clipped."""


def made(wrap, scale, fused=False, **options):
    """Return a session, a model of ones and its SGD."""
    amp = session(loss_scale=SCALE if scale == "dynamic" else "none", **options)
    model = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.ones_(model.weight)
    if wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif wrap == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE, fused=fused))


def weight(model):
    value = next(iter(model.parameters())).detach()
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.flatten().tolist()


def backward(amp, model, optimizer, value=1.0):
    amp.backward(lambda: model(torch.full((1, 1), value)).sum(), optimizer)


def feed(amp, model, optimizer, condition, clips=False, value=1.0):
    backward(amp, model, optimizer, value)
    if clips:
        amp.clip_grad_norm(optimizer, 100.0)
    amp.skip_if(condition)
    return amp.step(optimizer)


def oracle(scale):
    """Return reason, scale and weight after each moment, by the reference transition."""
    state, weights, seen = ScaleState(8.0 if scale == "dynamic" else 1.0), 1.0, []
    for moment in MOMENTS:
        overflows = math.inf in moment
        if overflows and scale == "none":
            continue
        reason = "non_finite" if overflows else "discarded" if any(moment) else "applied"
        if scale == "dynamic" and reason != "discarded":
            state = SCALE.next_state(state, overflows)
        weights -= RATE * (reason == "applied")
        seen.append((reason, state.scale, [weights] * 2))
    return seen


def conditions(rank):
    answers = []
    for wrap, scale, fused, clips in CASES:
        if fused:  # which skips on the device where reading it would synchronize
            kinds.TRAITS["cpu"] = replace(kinds.TRAITS["cpu"], reads_without_sync=False)
        amp, model, optimizer = made(wrap, scale, fused)
        kinds.TRAITS["cpu"] = replace(kinds.TRAITS["cpu"], reads_without_sync=True)
        seen = []
        for index, moment in enumerate(MOMENTS):
            overflows = math.inf in moment
            if overflows and scale == "none":
                continue
            holds = moment[rank] == 1
            condition = torch.tensor(float(holds)) if index % 2 else holds
            value = math.inf if moment[rank] == math.inf else 1.0
            outcome = feed(amp, model, optimizer, condition, clips, value)
            seen.append((outcome.reason, amp.loss_scale, weight(model)))
        answers.append((seen, amp.applied_steps, amp.skipped_steps))
    return answers


def test_a_condition_on_any_rank_drops_the_step_on_all(answers):
    for rank in answers["conditions"]:
        for case, (seen, applied, skipped) in zip(CASES, rank, strict=True):
            assert seen == oracle(case[1]), case
            assert (applied, skipped) == (3, 2 if case[1] == "dynamic" else 0), case


def discards(rank):
    answers = []
    for wrap in ("ddp", "fsdp"):
        for scale in ("dynamic", "none"):
            amp, model, optimizer = made(wrap, scale, accumulate_steps=2)
            seen = []
            for who in ((), (0,), (1,), (0, 1)):  # in place of the step of a window's last micro-batch
                for last in (False, True):
                    backward(amp, model, optimizer)
                    amp.skip_if(False)
                    call = amp.discard_step if last and rank in who else amp.step
                    outcome = call(optimizer)
                seen.append(outcome.reason)
            for micro in (1, 2):  # on all ranks, without a condition: in the middle of a window, and at its end
                for index in range(micro):
                    backward(amp, model, optimizer)
                    (amp.step if index + 1 < micro else amp.discard_step)(optimizer)
                amp.discard_step(optimizer)  # no window is open: other ranks are not asked
            if rank:
                amp.discard_step(optimizer)
            answers.append((seen, weight(model), amp.loss_scale, amp.applied_steps))
    return answers


def test_a_discarded_step_is_dropped_on_all_ranks(answers):
    first, second = answers["discards"]
    assert first == second
    for seen, weights, scale, applied in first:
        assert seen == ["applied", "discarded", "discarded", "discarded"]
        assert (weights, scale, applied) == ([1 - RATE] * 2, scale, 1)
        assert scale in (8.0, 1.0)


def discards_alone(rank):
    dist.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=1))
    answers = []
    for wrap, scale in (("ddp", "none"), ("alone", "dynamic")):
        amp, model, optimizer = made(wrap, scale)
        told = ""
        for index in range(3):
            backward(amp, model, optimizer)
            if rank == 1 and index == 1:
                with pytest.raises(ua.StepOrderError) as caught:
                    amp.discard_step(optimizer)
                told = str(caught.value)
            amp.step(optimizer)
        dist.barrier()
        for _ in range(2):  # all of them do, after one that did not
            backward(amp, model, optimizer)
            amp.discard_step(optimizer)
        answers.append((weight(model), amp.applied_steps, told))
    return answers


def test_a_rank_that_discards_alone_is_told(answers):
    """It keeps its window, and makes the step that the others make."""
    for first, second in zip(*answers["discards_alone"], strict=True):
        assert first == ([1 - 3 * RATE] * 2, 3, "")
        assert second[:2] == first[:2]
        assert "rank 1 discards a window that rank 0 did not discard" in second[2]
        assert "amp.skip_if(condition)" in second[2]


def separate(rank):
    amp, model, optimizer = made("alone", "dynamic", backend_options={"torch": {"process_group": False}})
    backward(amp, model, optimizer)
    if rank:
        return [amp.discard_step(optimizer).reason]
    return [feed(amp, model, optimizer, True).reason, feed(amp, model, optimizer, False).reason]


def test_ranks_that_train_alone_decide_alone(answers):
    assert answers["separate"] == [["discarded", "applied"], ["discarded"]]


# -- the processes, which run all of it ----------------------------------------------------------------------------

PARTS = [conditions, discards, discards_alone, separate]


def every_part(rank):
    return [part(rank) for part in PARTS]


@pytest.fixture(scope="module")
def answers():
    """Return what each part returned, on each rank."""
    first, second = checked(run_ranks(every_part))
    return {part.__name__: [one, other] for part, one, other in zip(PARTS, first, second, strict=True)}


@pytest.mark.parametrize("scale", [8.0, "none"])
def test_tensors_that_cannot_be_read_are_refused(scale):
    """Before they are kept for the step, which goes on."""
    amp = session(loss_scale=scale)
    model = torch.nn.Linear(2, 1)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), RATE))
    amp.backward(lambda: model(torch.ones(3, 2)).mean(), optimizer)
    one = torch.ones(())
    fake = FakeTensorMode().from_tensor(one)
    with torch.sparse.check_sparse_tensor_invariants():
        unreadable = {"without a value": one.to("meta"), "FakeTensorMode": fake, "to_dense": one.to_sparse()}
    for says, condition in unreadable.items():
        with pytest.raises(ua.WrongObjectError, match=rf"amp\.skip_if: the condition must be.*{says}"):
            amp.skip_if(condition)
    assert amp.step(optimizer).applied
