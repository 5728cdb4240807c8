"""Steps that cannot be captured, or not yet: they run uncaptured, and say why."""

import gc
import warnings
from pathlib import Path

import pytest
import torch
from captured import STEPS, Trained, assert_same, both, plain
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp_torch.compiling.captured_step import MOST_GRAPHS, WARM_UP
from unifiedamp_torch.compiling.shared_models import SharedModels
from unifiedamp_torch.training.steps import check_capturable


def test_a_step_that_the_host_takes_part_in_says_which_line(monkeypatch):
    def body(run, x, y):
        loss = plain(run, x, y)
        run.last = loss.item()  # the host reads
        return loss

    runs, given = [], []
    for captured in (False, True):
        run = Trained(monkeypatch, captured, body=body)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            given.append([run.feed(i) for i in range(STEPS)])
        runs.append(run)
    messages = [str(each.message) for each in seen if issubclass(each.category, ua.CompileWarning)]
    assert len(messages) == 1
    assert Path(__file__).name in messages[0]
    assert "`run.last = loss.item()  # the host reads`" in messages[0]
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimizer_that_the_host_steps_is_named(monkeypatch):
    run = Trained(monkeypatch, True, fused=False)
    for i in range(WARM_UP):
        run.feed(i)
    with pytest.warns(ua.CompileWarning, match=r"amp.step\(optimizer\)`: .*this AdamW; make it with fused=True"):
        run.feed(9)
    run.feed(10)
    assert run.amp.applied_steps == WARM_UP + 2


@pytest.mark.parametrize(
    ("kind", "sparse", "says"),
    [
        ("RMSprop", False, r'this RMSprop \(RMSprop has no fused form\); amp.compile\(mode="max"\) compiles it'),
        ("SGD", True, r"this SGD \(it has embeddings with sparse=True, and fused kernels take no sparse gradients\)$"),
        ("SGD", False, r"this SGD; make it with fused=True$"),
    ],
)
def test_it_is_said_what_makes_a_step_capturable(kind, sparse, says):
    table = torch.nn.Embedding(4, 2, sparse=sparse)
    optimizer = getattr(torch.optim, kind)(table.parameters(), lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ua.UnsupportedError, match=says):
        check_capturable(optimizer, ready=False)


def test_under_strict_it_is_an_error(monkeypatch):
    run = Trained(monkeypatch, True, fused=False, strict=True)
    for i in range(WARM_UP):
        run.feed(i)
    with pytest.raises(ua.UnsupportedError, match="fused=True"):
        run.feed(9)


def test_first_steps_that_overflow_delay_the_capture(monkeypatch):
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, bad=i < 6), optimizer="SGD")
    assert_same(runs, given)
    assert runs[1].amp.skipped_steps == 6


@pytest.mark.filterwarnings("error::unifiedamp.CompileWarning", r"ignore:\s*Online softmax:UserWarning")
def test_a_compiled_update_waits_for_the_first_applied_step(monkeypatch):
    """That makes the optimizer's state, which the update is compiled for; the capture is delayed, and not refused."""
    run = Trained(monkeypatch, True, fused=False, updates=True)
    for seed in range(2 * WARM_UP + 4):
        run.feed(seed, bad=True)
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (0, 2 * WARM_UP + 4)


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_while_a_step_is_captured(monkeypatch, fails):
    """Another session's pinned memory or graph, freed in a capture, would break it off."""
    collects = []

    def body(run, x, y):
        collects.append(gc.isenabled())
        if fails and not gc.isenabled():
            raise ValueError("cannot be captured")
        return plain(run, x, y)

    run = Trained(monkeypatch, True, body=body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.errors.CompileWarning)
        for seed in range(WARM_UP + 2):
            run.feed(seed)
    assert collects[: WARM_UP + 1] == [True] * WARM_UP + [False]
    assert gc.isenabled()
    assert collects[WARM_UP + 1 :] == ([True] * 2 if fails else [])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("at", [WARM_UP, WARM_UP + 3], ids=["captured first", "captured before"])
def test_a_step_that_fails_uncaptured_too_is_not_refused(monkeypatch, at, strict):
    """Its own error is raised, without a word of captures; it is captured once it runs."""
    run, eager = Trained(monkeypatch, True, strict=strict), Trained(monkeypatch, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ua.CompileWarning)
        for seed in range(at):
            run.feed(seed)
        saved = {name: value.clone() for name, value in run.model.state_dict().items()}
        run.model.half()
        for seed in range(2 * MOST_GRAPHS):
            with pytest.raises(ua.ParamDtypeError, match="do not cast a prepared model"):
                run.feed(seed)
        run.model.float().load_state_dict(saved)
        for seed in range(at, STEPS):
            run.feed(seed)
    for seed in range(STEPS):
        eager.feed(seed)
    assert getattr(run, "captured", run.step).graphs
    torch.testing.assert_close(dict(run.model.named_parameters()), dict(eager.model.named_parameters()))
    assert run.amp.state_dict()["state"] == eager.amp.state_dict()["state"]


class Fails(TapeCapturer):
    """Fails in its first captures.

    Args:
        times: how many.
    """

    def __init__(self, times):
        super().__init__()
        self.left = times

    def capture(self, fn):
        if self.left:
            self.left -= 1
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(fn)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a tape stands in for the GPU")
@pytest.mark.parametrize(("shared", "failures", "captures"), [(True, 1, 1), (True, 2, 0), (False, 1, 0)])
def test_a_step_of_several_ranks_may_fail_to_be_captured_once(monkeypatch, shared, failures, captures):
    """The reducer of DDP asks things of the device at every hundredth step."""
    eager, run = Trained(monkeypatch, False), Trained(monkeypatch, True)
    context = run.step._context
    run.stage = context.capturer = Fails(failures)
    context.shared = SharedModels([]) if shared else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = [[each.feed(i) for i in range(STEPS)] for each in (eager, run)]
    refused = [str(each.message) for each in caught if "runs uncaptured" in str(each.message)]
    assert len(refused) == (captures == 0)
    assert run.stage.captures == captures
    torch.testing.assert_close(given[0], given[1], rtol=1e-5, atol=1e-6)
    assert run.amp.state_dict()["state"] == eager.amp.state_dict()["state"]
