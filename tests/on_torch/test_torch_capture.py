"""The whole step captured and replayed: the results are those of eager, whatever changes between steps.

On the CPU a tape stands in for the CUDA graph (see ``tape.py``); where there is a GPU the real thing runs too.
"""

import gc
import math
import warnings

import pytest
import torch
from loops import batch, mlp, pretend_reads_sync, weights
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import MOST_GRAPHS, WARM_UP, CapturedStep
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates
from unifiedamp_torch.compiling.shared_models import SharedModels

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
STEPS = 20


class Trained:
    """A model under a session, and a step that is captured or not."""

    def __init__(self, monkeypatch, captured, *, policy="float32", loss_scale=SCALE, fused=True, optimizer="AdamW",
                 body=None, drop=0.0, **options):  # fmt: skip
        if not torch.cuda.is_available():
            pretend_reads_sync(monkeypatch)
        self.amp = ua.Amp("torch", policy, loss_scale=loss_scale, **options)
        model = torch.nn.Sequential(mlp(), torch.nn.Dropout(drop)).to(self.amp.backend.device.native)
        extra = {"momentum": 0.9} if optimizer == "SGD" else {}
        native = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, fused=fused, **extra)
        self.model, self.optimizer = self.amp.prepare(model, native)
        self.stage = None
        step = lambda x, y: (body or plain)(self, x, y)  # noqa: E731
        self.step = self._captured(step) if captured else step

    def _captured(self, step):
        backend, device = self.amp.backend, self.amp.backend.device.native
        if device.type == "cuda":
            compiled = self.amp.compile(step)
            self.captured = compiled.__wrapped__ if hasattr(compiled, "__wrapped__") else compiled
            return compiled
        self.stage, rates = TapeCapturer(), DeviceLearningRates(device)
        context = CaptureContext(self.stage, rates, backend.compiler.steps, backend.spec, device.type)
        return CapturedStep(step, context, self.amp._loop.order, backend.compiler.must_run)

    def feed(self, seed, bad=False, size=32):
        x, y = (each[:size].to(self.amp.backend.device.native) for each in batch(seed))
        if bad:
            x[0] = math.inf
        return self.step(x, y)


def plain(run, x, y):
    amp, optimizer = run.amp, run.optimizer
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(run.model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.clip_grad_norm(optimizer, 1.0)
    amp.step(optimizer)
    return loss


def both(monkeypatch, feed, **options):
    """Run ``feed(run, i)`` for each step, uncaptured and captured; return the two runs and what they gave."""
    runs = [Trained(monkeypatch, captured, **options) for captured in (False, True)]
    given = []
    for run in runs:
        torch.manual_seed(3)
        given.append([feed(run, i) for i in range(STEPS)])
    return runs, given


def assert_same(runs, given):
    eager, captured = runs
    assert captured.amp.state_dict()["state"] == eager.amp.state_dict()["state"]
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    for one, other in zip(weights(eager.model), weights(captured.model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    if captured.stage is not None:
        assert captured.stage.replays > 0


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adam"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_results_are_those_of_eager(monkeypatch, policy, optimizer):
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, bad=i % 5 == 3), policy=policy, optimizer=optimizer)
    assert_same(runs, given)
    assert runs[1].amp.skipped_steps == 4
    if runs[1].stage:
        assert (runs[1].stage.captures, runs[1].stage.replays) == (1, STEPS - WARM_UP)


def test_without_a_loss_scale_the_host_counts(monkeypatch):
    runs, given = both(monkeypatch, lambda run, i: run.feed(i), loss_scale="none")
    assert_same(runs, given)
    assert runs[1].amp.applied_steps == STEPS


def test_a_learning_rate_may_move_between_steps(monkeypatch):
    def feed(run, i):
        for group in run.optimizer.param_groups:
            group["lr"] = 0.05 * 0.9**i
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)
    assert runs[1].optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9 ** (STEPS - 1))
    assert runs[1].stage is None or runs[1].stage.captures == 1


def test_another_setting_makes_a_new_capture(monkeypatch):
    def feed(run, i):
        run.optimizer.param_groups[0]["weight_decay"] = 0.0 if i < 10 else 0.5
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)
    assert runs[1].stage is None or runs[1].stage.captures == 2


def test_each_shape_has_a_capture(monkeypatch):
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, size=32 if i % 2 else 16))
    assert_same(runs, given)
    assert runs[1].stage is None or runs[1].stage.captures == 2


def test_too_many_shapes_run_uncaptured_and_say_so(monkeypatch):
    run = Trained(monkeypatch, True)
    for size in range(2, 2 + MOST_GRAPHS):
        run.feed(0, size=size)
    with pytest.warns(ua.CompileWarning, match=rf"more than {MOST_GRAPHS} signatures.*shape \(9, 8\).*shape \(10, 8\)"):
        run.feed(0, size=10)
    assert run.amp.applied_steps == MOST_GRAPHS + 1


def test_an_accumulation_window_is_a_capture_for_each_place(monkeypatch):
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, bad=i == 10), accumulate_steps=2)
    assert_same(runs, given)
    assert runs[1].amp.skipped_steps == 1
    assert runs[1].stage is None or runs[1].stage.captures == 2


def test_gradients_that_a_capture_did_not_make_are_added_to(monkeypatch):
    """A micro-batch of another shape runs uncaptured; its window's end must not be replayed on older gradients."""
    sizes = [32] * 12 + [16, 32, 32, 32, 16, 32, 32, 32]
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, size=sizes[i]), accumulate_steps=2)
    assert_same(runs, given)


def test_loaded_optimizer_state_is_used(monkeypatch):
    def feed(run, i):
        if i == 8:
            run.saved = run.optimizer.state_dict()
            run.saved = torch.utils._pytree.tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, run.saved)
        if i == 14:
            run.optimizer.load_state_dict(run.saved)
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)


def test_freezing_a_layer_is_noticed(monkeypatch):
    def feed(run, i):
        if i == 10:
            run.model[0][0].requires_grad_(False)
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)


def test_evaluation_mode_is_noticed(monkeypatch):
    def feed(run, i):
        run.model.train(i < 10)
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)


def test_results_of_steps_can_be_looked_at_later(monkeypatch):
    def body(run, x, y):
        loss = run.amp.backward(lambda: torch.nn.functional.cross_entropy(run.model(x), y), run.optimizer)
        return loss, run.amp.step(run.optimizer)

    run = Trained(monkeypatch, True, body=body)
    results = [run.feed(i, bad=i in (2, 9))[1] for i in range(14)]
    state, expected = SCALE.initial_state(), []
    for i in range(14):
        after = SCALE.next_state(state, i in (2, 9))
        expected.append((i not in (2, 9), state.scale, after.scale))
        state = after
    assert [(each.applied, each.scale, each.next_scale) for each in results] == expected


def test_outputs_are_left_alone_by_later_steps(monkeypatch):
    run = Trained(monkeypatch, True)
    losses = [run.feed(i) for i in range(10)]
    values = [loss.item() for loss in losses]
    assert [loss.item() for loss in losses] == values
    assert len(set(values)) == 10


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
    assert "test_torch_capture.py" in messages[0]
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


def test_two_optimizers(monkeypatch):
    def train(captured):
        run = Trained(monkeypatch, False)
        other = torch.optim.SGD(run.model[0][3].parameters(), lr=0.1, fused=True)
        first = torch.optim.SGD(run.model[0][0].parameters(), lr=0.1, momentum=0.9, fused=True)
        amp = ua.Amp("torch", "float32", loss_scale=SCALE)
        _, first, other = amp.prepare(run.model, first, other)

        def body(_, x, y):
            loss = amp.backward(lambda: torch.nn.functional.cross_entropy(run.model(x), y), [first, other])
            amp.step(first)
            amp.step(other)
            return loss

        run.amp = amp
        step = lambda x, y: body(None, x, y)  # noqa: E731
        run.step = run._captured(step) if captured else step
        given = [run.feed(i, bad=i in (7, 13)) for i in range(STEPS)]
        return run, given

    (eager, one), (captured, two) = train(False), train(True)
    assert_same([eager, captured], [one, two])
    assert captured.amp.applied_steps == 2 * (STEPS - 2)


def test_exhaustion_is_noticed(monkeypatch):
    limited = ua.DynamicLossScale(initial_scale=4.0, max_consecutive_skips=5)
    run = Trained(monkeypatch, False, loss_scale=limited)
    step = run._captured(run.step)
    run.step = run.amp._compiled.follow(step) if run.stage else step
    for i in range(30):
        run.feed(i)
    with pytest.raises(ua.LossScaleExhausted, match=r"0\.0\.weight"):
        for i in range(70):
            run.feed(i, bad=True)
    assert run.amp.skipped_steps <= 5 + 50


def test_a_checkpointed_layer_is_computed_again_in_a_replay(monkeypatch):
    # Layer 0 holds no random layer, so a capture need not ask for the random state.
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, bad=i % 5 == 3), tuning={"checkpoint_layers": ("0",)})
    assert_same(runs, given)
    assert runs[1].amp.skipped_steps == 4


def test_prefetched_batches_feed_a_captured_step(monkeypatch):
    given = []
    for ahead in (False, True):
        run = Trained(monkeypatch, True)
        batches = [batch(seed) for seed in range(STEPS)]
        native = run.amp.prefetch(batches, 3) if ahead else [map(run.amp.to_native, each) for each in batches]
        given.append([run.step(x, y) for x, y in native])
        assert run.amp.applied_steps == STEPS
    torch.testing.assert_close(given[0], given[1], rtol=0, atol=0)


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


def test_a_tensor_that_is_returned_twice_is_copied_once(monkeypatch):
    """Outputs that are the same memory in an uncaptured step are so in a captured one, and later replays leave them."""

    def body(run, x, y):
        loss = plain(run, x, y)
        return {"loss": loss, "again": [loss], "detached": loss.detach(), "double": 2 * loss.detach()}

    _, given = both(monkeypatch, lambda run, i: run.feed(i), body=body)
    for eager, captured in zip(*given, strict=True):
        for out in (eager, captured):
            assert out["loss"].data_ptr() == out["again"][0].data_ptr() == out["detached"].data_ptr()
            assert out["double"].data_ptr() != out["loss"].data_ptr()
            assert float(out["double"]) == 2 * float(out["loss"].detach())
        assert float(eager["loss"].detach()) == pytest.approx(float(captured["loss"].detach()), rel=1e-6)
    places = [captured["loss"].data_ptr() for captured in given[1]]
    assert len(set(places)) == STEPS, "each call returns its own"


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
