"""The whole step captured and replayed: the results are those of eager, whatever changes between steps.

On the CPU a tape stands in for the CUDA graph (see ``tape.py``); where there is a GPU the real thing runs too.
"""

import pytest
import torch
from captured import SCALE, STEPS, Trained, assert_same, both, plain
from loops import batch

import unifiedamp as ua
from unifiedamp_torch.compiling.captured_step import MOST_GRAPHS, WARM_UP


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


def exchange(layers):
    layers.insert(0, torch.nn.Tanh())
    del layers[2]


CHANGES = {
    "insert": lambda layers: layers.insert(1, torch.nn.Tanh()),
    "append": lambda layers: layers.append(torch.nn.Tanh()),
    "assign": lambda layers: setattr(layers, "1", torch.nn.Tanh()),
    "delete": lambda layers: layers.__delitem__(1),
    "exchange": exchange,
}
"""Changes of what a model computes, which leave its parameters alone."""


@pytest.mark.parametrize("change", CHANGES)
def test_layers_that_come_or_go_are_noticed(monkeypatch, change):
    def feed(run, i):
        if i == 10:
            CHANGES[change](run.model[0])
        return run.feed(i)

    runs, given = both(monkeypatch, feed)
    assert_same(runs, given)
    assert runs[1].stage is None or runs[1].stage.captures == 2


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
