"""``amp.skip_if`` in captured steps, and without a wait for the device. See ``test_torch_capture.py``."""

import pytest
import torch
from captured import SCALE, STEPS, Trained, assert_same, both
from loops import batch, pretend_reads_sync
from tape import HOST_READS
from torch.utils._python_dispatch import TorchDispatchMode

from unifiedamp.loss_scale import ScaleState
from unifiedamp_torch.compiling.captured_step import WARM_UP


def dropping(run, x, y):
    """A step that is dropped where the batch's mean is positive, once on the device and once on the host."""
    amp, optimizer = run.amp, run.optimizer
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(run.model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.clip_grad_norm(optimizer, 1.0)
    amp.skip_if(x.sum() > 0)
    amp.skip_if(False)
    return amp.step(optimizer)


def holds(seed, size=32):
    return bool(batch(seed)[0][:size].sum() > 0)


def oracle(scale, dropped, bad):
    """Return the scale after each step, by the reference transition, which dropped steps leave out."""
    state, seen = ScaleState(1.0 if scale == "none" else scale.initial_scale), []
    for i in range(STEPS):
        if scale != "none" and i not in dropped:
            state = scale.next_state(state, i in bad)
        seen.append(state.scale)
    return seen


def told(given):
    return [[tuple(outcome.values) for outcome in outcomes] for outcomes in given]


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("scale", [SCALE, "none"])
def test_results_are_those_of_eager(monkeypatch, scale, optimizer):
    bad = () if scale == "none" else (4, 9, 14)
    runs, given = both(
        monkeypatch, lambda run, i: run.feed(i, bad=i in bad), loss_scale=scale, optimizer=optimizer, body=dropping
    )
    eager, captured = told(given)
    assert_same(runs, [[], []])
    assert eager == captured
    dropped = [i for i in range(STEPS) if holds(i) and i not in bad]
    assert [i for i, values in enumerate(captured) if values[2] == "discarded"] == dropped
    assert 4 < len(dropped) < 16
    assert runs[1].amp.applied_steps == STEPS - len(dropped) - len(bad)
    assert [values[4] for values in captured] == oracle(scale, dropped, bad)
    if runs[1].stage:
        assert runs[1].stage.captures == 1
        # The host applies an optimizer's first step, and the warm-up's are dropped: it begins once more.
        assert all(holds(i) for i in range(WARM_UP))
        assert runs[1].stage.replays == STEPS - 2 * WARM_UP - 1


def test_a_window_of_captured_steps(monkeypatch):
    """A condition in any place of the window drops its step."""
    runs, given = both(monkeypatch, lambda run, i: run.feed(i), accumulate_steps=2, body=dropping)
    assert_same(runs, [[], []])
    reasons = [values[2] for values in told(given)[1][1::2]]
    assert reasons == ["discarded" if holds(i) or holds(i + 1) else "applied" for i in range(0, STEPS, 2)]
    assert {"discarded", "applied"} == set(reasons)


def test_averages_of_captured_steps(monkeypatch):
    means, runs = [], []

    def feed(run, i):
        if i == 0:
            runs.append(run)
            means.append(run.amp.ema(run.model, 0.5))
        return run.feed(i)

    both(monkeypatch, feed, body=dropping)
    eager, captured = ([each.weights()[name] for name in each.weights()] for each in means)
    for one, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), torch.from_numpy(other), rtol=1e-5, atol=1e-6)
    assert means[0].updates == means[1].updates == runs[0].amp.applied_steps
    before = means[1].weights()
    runs[1].feed(next(i for i in range(STEPS) if holds(i)))  # after an applied step, averages differ from weights
    for name, average in means[1].weights().items():
        assert (average == before[name]).all()


def test_a_condition_from_outside_the_capture(monkeypatch):
    """Given before the captured call that makes the step, it is no part of the graph, which is not replayed then."""

    def halves(run, x, y):
        if x.shape[0] == 32:
            run.amp.backward(lambda: torch.nn.functional.cross_entropy(run.model(x), y), run.optimizer)
            return None
        return run.amp.step(run.optimizer)

    def feed(run, i):
        run.feed(i)
        if i % 3 == 0:
            run.amp.skip_if(torch.tensor(float(i % 2)))
        return run.feed(0, size=1)

    runs, given = both(monkeypatch, feed, body=halves)
    assert_same(runs, [[], []])
    reasons = [values[2] for values in told(given)[1]]
    assert reasons == ["discarded" if i % 3 == 0 and i % 2 else "applied" for i in range(STEPS)]


class NoReads(TorchDispatchMode):
    """Refuses what waits for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in HOST_READS, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scale", [SCALE, "none"])
def test_nothing_waits_for_the_device(monkeypatch, scale):
    """Uncaptured, with an optimizer that skips in its kernel, once it has had a step."""
    pretend_reads_sync(monkeypatch)
    run = Trained(monkeypatch, False, loss_scale=scale, body=dropping)
    seeds = sorted(range(8), key=holds)
    run.feed(seeds[0])
    with NoReads():
        outcomes = [run.feed(seed) for seed in seeds[1:]]
    assert [each.reason for each in outcomes] == ["discarded" if holds(seed) else "applied" for seed in seeds[1:]]
    assert run.amp.applied_steps == sum(not holds(seed) for seed in seeds)
