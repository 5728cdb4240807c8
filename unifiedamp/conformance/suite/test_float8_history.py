"""Delayed scaling: which magnitudes enter a layer's history, the scales that follow from it, and its saved state."""

import json

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled
from unifiedamp.conformance.suite.float8_layers import BFLOAT16, E4M3, EYE, ZEROS, Layers, uneven
from unifiedamp.formats.rounding import round_to
from unifiedamp.formats.scaled_rounding import round_by

DELAYED = {"amax_history": 3, "margin": 1}


@pytest.mark.needs("float8", "emulation")
def test_delayed_scales_follow_the_history(harness, form):
    """What enters it, the scales that follow, larger values that saturate, and a state that a session goes on from."""
    values = uneven(0)
    scale = ua.DynamicLossScale(initial_scale=2.0, growth_interval=100)
    run = Layers(harness, "delayed", EYE, form=form, policy=DELAYED, loss_scale=scale)
    for factor in (1, 4, 0.5, 2):
        run.step(values * factor, values / factor)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[7.0, 1.75, 14.0], [1.0] * 3, [3.5, 14.0, 1.75]])
    worse = values.copy()
    worse[3, 5] = np.inf
    run.step(worse, values)
    assert run.amp.skipped_steps == 1
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], history)
    (eight, inverse), one = round_by(values * 16, E4M3, 448 / 14 / 2), np.float32(224)
    expected = round_to(eight * inverse * one * (1 / one), BFLOAT16)
    assert expected.max() == 28.0 == values.max() * 8
    np.testing.assert_array_equal(run.call(values * 16), expected)
    other = Layers(harness, "delayed", EYE, form=form, policy=DELAYED, loss_scale=scale)
    assert not np.array_equal(other.call(values * 16), expected)
    other.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
    np.testing.assert_array_equal(other.call(values * 16), expected)
    other.step(values, values * 2)
    history = other.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5, 7.0, 1.75], [1.0] * 3, [7.0, 3.5, 14.0]])


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("fails", [False, True], ids=["ran", "raised"])
def test_products_outside_layers_do_not_enter_a_history(harness, fails):
    """The function's operands are larger than those of the layer, which has run before it, or raised in it."""
    values = uneven(0) / 64
    run = Layers(harness, "delayed", EYE / 64, policy=DELAYED)
    x, y = run.batch(values, values)
    wrong = run.amp.to_native(np.zeros((2, 3), np.float32))

    def loss():
        output = run.model(x)
        if fails:
            with pytest.raises(Exception):  # noqa: B017  # each framework's own; here, not at a later wait
                run.model(wrong)
        for op in ("matmul", "linear"):
            harness.run_op(op)
        return harness.mean_square(output, y)

    run.amp.backward(loss, run.optimizer)
    run.amp.step(run.optimizer)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5 / 64], [1 / 64], [3.5 / 64]])


@pytest.mark.needs("float8", "emulation")
def test_a_layer_that_is_called_twice_keeps_the_largest_of_both(harness, form):
    """In one loss: weights that are shared, or a discriminator that sees two batches."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, form=form, policy=DELAYED)

    def train(x, y, other, wanted):
        found = harness.mean_square
        run.amp.backward(lambda: found(run.model(x), y) + found(run.model(other), wanted), run.optimizer)
        run.amp.step(run.optimizer)

    step, large, small = compiled(run.amp, form, train), (values * 4, values / 4), (values, values)
    for first, second in ((large, small), (small, large), (small, small)):
        step(*run.batch(*first), *run.batch(*second))
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5, 14.0, 14.0], [1.0] * 3, [3.5] * 3])


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((EYE, EYE), "belong to other layers: it has 'layer1', which is no float8 layer here"),
        ((EYE[:64],), "'layer0' has 64 inputs and 128 outputs in the state, and 128 inputs and 128 outputs here"),
    ],
    ids=["names", "sizes"],
)
def test_a_history_of_other_layers_is_refused(harness, others, said):
    """By their names, or by their sizes; the session goes on with its own."""
    values = uneven(0)
    run, other = Layers(harness, "delayed", EYE, policy=DELAYED), Layers(harness, "delayed", *others, policy=DELAYED)
    run.step(values, values)
    other.step(values[:, : len(others[0])] * 4, values)
    kept = run.amp.backend.amax_history.read()["layer0"]
    with pytest.raises(ua.CheckpointError, match=said):
        run.amp.load_state_dict(json.loads(json.dumps(other.amp.state_dict())))
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], kept)


@pytest.mark.needs("float8", "emulation")
def test_what_ran_before_a_loaded_state_does_not_enter_the_history(harness):
    """A forward pass of no step, or of one whose gradients were dropped with it."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED)
    run.step(values, values)
    state = json.loads(json.dumps(run.amp.state_dict()))
    x, _ = run.batch(values * 64, values)
    with run.amp.autocast():
        run.model(x)
    run.amp.load_state_dict(state)
    run.step(values, values)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5] * 2, [1.0] * 2, [3.5] * 2])


@pytest.mark.needs("float8", "emulation")
def test_an_overflow_in_one_gradient_alone_keeps_the_iteration_out(harness):
    """The magnitudes of every layer, also where they are finite."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED, loss_scale=ua.DynamicLossScale(2.0, growth_interval=100))
    run.step(values, values)
    kept = run.amp.backend.amax_history.read()["layer0"]
    run.backward(*run.batch(values * 4, values))
    found = {name: np.array(run.amp.to_numpy(each)) for name, each in run.amp.gradients(run.optimizer).items()}
    bias = next(name for name, each in found.items() if each.ndim == 1)
    harness.set_gradients(run.amp, run.optimizer, {bias: np.full_like(found[bias], np.inf)})
    run.amp.step(run.optimizer)
    assert run.amp.skipped_steps == 1
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], kept)


@pytest.mark.needs("float8", "emulation")
def test_operands_that_are_zero_leave_the_others_their_history(harness):
    """Of a loss that is zero, and so are its gradients: also in a state that is saved and loaded."""
    values = uneven(0)
    run, other = (Layers(harness, "delayed", EYE, policy=DELAYED) for _ in range(2))
    run.step(values, values)
    run.step(values * 4, values * 0)
    expected = [[14.0, 3.5], [1.0, 1.0], [3.5, 0.0]]
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], expected)
    other.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
    np.testing.assert_array_equal(other.amp.backend.amax_history.read()["layer0"], expected)
    np.testing.assert_array_equal(other.call(values * 16), run.call(values * 16))


@pytest.mark.needs("float8", "emulation", "accumulation")
def test_a_window_enters_the_history_once(harness):
    """With the largest of its micro-batches; a discarded window and evaluation do not."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED, accumulate_steps=2)
    run.step(values * 64, values)
    run.amp.discard_step(run.optimizer)
    for factor in (1, 4):
        run.step(values * factor, values)
    run.call(values * 32)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[14.0], [1.0], [1.75]])  # the loss of a micro-batch counts half


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("scaled", [False, True])
def test_a_skipped_step_does_not_enter_the_history(harness, scaled):
    """Its magnitudes are finite and larger than those of the steps beside it."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED, loss_scale="dynamic" if scaled else None)
    for factor in (1, 64, 4):
        run.backward(*run.batch(values * factor, values))
        run.amp.skip_if(factor == 64)
        run.amp.step(run.optimizer)
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"][:2], [[14.0, 3.5], [1.0, 1.0]])


def two_models(harness, **options):
    """A session of two models and their optimizers, under delayed scaling: (model, optimizer) of each is chosen."""
    run = Layers(harness, "delayed", EYE, policy=DELAYED, **options)
    with run.amp.scope():
        model = harness.mlp([(EYE, ZEROS)])
        optimizer = harness.sgd([model], 0.0)
    pairs = [(run.model, run.optimizer), run.amp.prepare(model, optimizer)]

    def choose(index):
        run.model, run.optimizer = pairs[index]
        return run

    return choose


@pytest.mark.needs("float8", "emulation", "several_optimizers")
@pytest.mark.parametrize("dropped", [0, 1])
def test_a_step_that_one_optimizer_skips_keeps_the_whole_iteration_out(harness, dropped):
    values, choose = uneven(0), two_models(harness, loss_scale=2.0)
    for factor in (1, 64, 4):
        for index in range(2):
            run = choose(index)
            run.backward(*run.batch(values * factor, values))
            run.amp.skip_if(factor == 64 and index == dropped)
            run.amp.step(run.optimizer)
    histories = run.amp.backend.amax_history.read()
    assert len(histories) == 2
    for history in histories.values():
        np.testing.assert_array_equal(history[0], [14.0, 3.5])


@pytest.mark.needs("float8", "emulation", "several_optimizers")
@pytest.mark.parametrize("loss_scale", ["none", 2.0])
def test_scales_of_layers_without_a_history(harness, loss_scale):
    """1 after a first iteration that was dropped; those of present magnitudes in a layer that has not trained yet.

    Also where there was a history before the session went back to its beginning.
    """
    values, choose = uneven(0), two_models(harness, loss_scale=loss_scale)
    large, run = values * 512, choose(0)
    beginning = run.amp.state_dict()
    for _ in range(2):  # the second loss ends the iteration of the first
        run.step(values, values)
    run.amp.load_state_dict(beginning)
    for _ in range(2):
        run.backward(*run.batch(values, values))
        run.amp.skip_if(True)
        run.amp.step(run.optimizer)
    for index, scale in ((0, 1.0), (1, 448 / 1792)):
        eight, inverse = round_by(large, E4M3, scale)
        np.testing.assert_array_equal(choose(index).call(large), round_to(eight * inverse, BFLOAT16))


@pytest.mark.needs("float8", "emulation")
def test_an_interrupted_window_does_not_enter_the_history(harness):
    """Neither does the loss that was differentiated before the interrupted one."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED)
    run.step(values, values)
    run.backward(*run.batch(values * 16, values * 16))
    x, y = run.batch(values * 4, values)

    def interrupted():
        harness.mean_square(run.model(x), y)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.amp.backward(interrupted, run.optimizer)
    run.step(values / 2, values)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[1.75, 3.5], [1.0, 1.0], [3.5, 3.5]])


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("saved", ["an empty history", "no history"])
def test_a_state_without_a_history_starts_scales_anew(harness, saved):
    """Of a session that had not trained yet, or of one without delayed scaling."""
    values = uneven(0)
    run, other = (Layers(harness, "delayed", EYE, policy=DELAYED) for _ in range(2))
    run.step(values * 4, values)
    state = json.loads(json.dumps(other.amp.state_dict()))
    if saved == "no history":
        state.pop("amax_history", None)
    run.amp.load_state_dict(state)
    for each in (run, other):
        np.testing.assert_array_equal(each.call(values * 16), other.call(values * 16))
        each.step(values, values)
    np.testing.assert_array_equal(run.call(values * 16), other.call(values * 16))
    histories = [each.amp.backend.amax_history.read()["layer0"] for each in (run, other)]
    np.testing.assert_array_equal(*histories)


@pytest.mark.needs("float8", "emulation")
def test_of_a_longer_history_the_newest_part_is_kept(harness):
    values = uneven(0)
    run, shorter = (Layers(harness, "delayed", EYE, policy=DELAYED | {"amax_history": length}) for length in (3, 2))
    for factor in (1, 4, 2):
        run.step(values * factor, values)
    with pytest.warns(ua.StateWarning, match="amax_history=3"):
        shorter.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
    np.testing.assert_array_equal(shorter.amp.backend.amax_history.read()["layer0"][0], [7.0, 14.0])
