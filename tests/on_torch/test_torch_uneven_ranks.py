"""Two gloo ranks that are given different gradients or numbers of batches: by comm hooks, and in torch's ``Join``."""

import contextlib
import math

import pytest
import torch
from loops import session
from ranks import checked, run_ranks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua

BATCHES = (4, 2)
"""Of each rank."""


def ddp():
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(2, 2))


def prepared(model, loss_scale, hook=None):
    amp = session(loss_scale=loss_scale)
    if hook is not None:
        model.register_comm_hook(None, hook)
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def batch(rank, index):
    return torch.full((3, 2), 1.0 + rank + index)


def local(_, bucket):
    """Reduce nothing, as local SGD does between its averages."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def overflow_on_one(rank):
    amp, model, optimizer = prepared(ddp(), ua.DynamicLossScale(initial_scale=8.0), local)
    reasons = []
    for index in range(3):
        x = batch(rank, index) * (math.inf if rank and index == 1 else 1.0)
        amp.backward(lambda x=x: model(x).sum(), optimizer)
        reasons.append(amp.step(optimizer).reason)
    return reasons, amp.loss_scale


def feedback(rank, when, loss_scale="dynamic", **options):
    """PowerSGD, by a hook that is there before ``prepare`` or comes after it; return which refusal was raised."""
    model, state = ddp(), PowerSGDState(None, start_powerSGD_iter=3, **options)
    try:
        if when == "before":
            model.register_comm_hook(state, powerSGD_hook)
        amp, model, optimizer = prepared(model, loss_scale)
        if when == "after":
            model.register_comm_hook(state, powerSGD_hook)
        for index in range(5):
            amp.backward(lambda index=index: model(batch(rank, index)).sum(), optimizer)
            amp.step(optimizer)
    except ua.UnsupportedError as error:
        return str(error)
    return "nothing"


def uneven(rank, loss_scale, skips=False):
    amp, model, optimizer = prepared(ddp(), loss_scale)
    with Join([model]):
        for index in range(BATCHES[rank]):
            amp.backward(lambda index=index: model(batch(rank, index)).sum(), optimizer)
            if skips:
                amp.skip_if(False)
            amp.step(optimizer)
    return [param.tolist() for param in model.parameters()]


def native(rank):
    model = ddp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for index in range(BATCHES[rank]):
            optimizer.zero_grad()
            model(batch(rank, index)).sum().backward()
            optimizer.step()
    return [param.tolist() for param in model.parameters()]


def refused(rank, *arguments):
    with contextlib.suppress(RuntimeError):  # torch's, where Join ends after an error
        try:
            uneven(rank, *arguments)
        except ua.UnsupportedError as error:
            return str(error)
    return "nothing"


def everything(rank):
    return {
        "overflow": overflow_on_one(rank),
        "feedback": [feedback(rank, when) for when in ("before", "after")],
        "no feedback": feedback(rank, "before", use_error_feedback=False, warm_start=False),
        "unscaled feedback": feedback(rank, "before", "none"),
        "native": native(rank),
        "static": uneven(rank, ua.StaticLossScale(8.0)),
        "none": uneven(rank, "none"),
        "dynamic": refused(rank, "dynamic"),
        "skip_if": refused(rank, ua.StaticLossScale(8.0), True),
    }


@pytest.fixture(scope="module")
def ranks():
    return checked(run_ranks(everything))


def test_all_ranks_skip_although_a_hook_reduces_nothing(ranks):
    assert [rank["overflow"] for rank in ranks] == [(["applied", "non_finite", "applied"], 4.0)] * 2


def test_hooks_that_keep_scaled_gradients_are_refused(ranks):
    for rank in ranks:
        for said in rank["feedback"]:
            assert "the comm hook powerSGD_hook keeps what it computes from scaled gradients" in said
        assert rank["no feedback"] == rank["unscaled feedback"] == "nothing"


@pytest.mark.parametrize("scale", ["static", "none"])
def test_uneven_inputs_train_as_natively(ranks, scale):
    for rank in ranks:
        assert rank[scale] == rank["native"] == ranks[0]["native"]


@pytest.mark.parametrize(("what", "said"), [("dynamic", "another loss scale (dynamic)"), ("skip_if", "amp.skip_if")])
def test_what_ranks_without_inputs_would_miss_is_refused(ranks, what, said):
    for rank in ranks:
        assert "torch's Join" in rank[what]
        assert said in rank[what]
