"""A measured run of the user's functions: each step and its loss are noted once, compiled or not."""

from __future__ import annotations

import json

import pytest

tf = pytest.importorskip("tensorflow")
from models import batch, mean_square, prepared  # noqa: E402

from unifiedamp.measured import VARIABLE  # noqa: E402
from unifiedamp.measured.request import LOG, RunRequest  # noqa: E402
from unifiedamp_tensorflow.training import xla_steps  # noqa: E402

LOOP = 6
"""Steps of one call that holds a loop."""
CALLED = type(tf.function(lambda: tf.constant(0))).__call__


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def step_of(amp, model, optimizer):
    def step(x, y):
        with amp.autocast():
            loss = mean_square(model(x, training=True), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
        return loss

    return step


def looped(step):
    def steps(x, y):
        losses = tf.zeros([LOOP])
        for index in tf.range(LOOP):
            losses = tf.tensor_scatter_nd_update(losses, [[index]], [step(x, y)])
        return losses

    return steps


def concrete(step):
    return tf.function(step, jit_compile=True).get_concrete_function(*map(tf.TensorSpec.from_tensor, batch()))


FORMS = {
    "eager": lambda step: step,
    "function": tf.function,
    "xla": lambda step: tf.function(step, jit_compile=True),
    "xla of a loop": lambda step: tf.function(looped(step), jit_compile=True),
    "concrete xla": concrete,
    "xla in a function": lambda step: tf.function(tf.function(step, jit_compile=True).__call__),
}


def train(step, calls=100, rows=lambda call: 16):
    """Train until the run ends; return each call's losses."""
    own = []
    try:
        for call in range(calls):
            own.append(step(*batch(rows(call))).numpy().reshape(-1).tolist())
    except (SystemExit, tf.errors.UnknownError):  # TensorFlow's, where a trace calls Python
        return [loss for each in own for loss in each]
    raise AssertionError("the run did not end")


def noted(folder):
    notes = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    assert notes[-1] == {"kind": "end", "reason": "steps", "why": ""}
    return [note for note in notes if note["kind"] == "turn"]


@pytest.mark.parametrize("form", FORMS)
def test_each_step_is_noted_with_its_loss(run_folder, form):
    RunRequest("steps", (4, 12)).write(run_folder)
    amp, model, optimizer = prepared("float32", loss_scale=4.0)
    own = train(FORMS[form](step_of(amp, model, optimizer)))
    turns = noted(run_folder)
    losses = [loss for turn in turns for loss in turn["losses"]]
    assert losses[: len(own)] == pytest.approx(own, rel=1e-6)
    assert len(losses) == turns[-1]["state"]["applied"] == int(optimizer.iterations.numpy())
    assert len(losses) - len(own) == (LOOP if "loop" in form else 1), "the call that ended the run returned nothing"
    amp.close()


def test_several_steps_of_one_call_of_fit_share_its_time(run_folder):
    RunRequest("steps", (12,)).write(run_folder)
    amp, model, optimizer = prepared("float32", loss_scale=4.0)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False, steps_per_execution=3)
    x, y = batch(64)
    with pytest.raises(SystemExit):
        model.fit(x, y, batch_size=4, epochs=4, verbose=0)
    (turn,) = noted(run_folder)
    calls = [turn["times"][begin : begin + 3] for begin in range(0, 12, 3)]
    assert [len(each) for each in calls] == [3, 3, 3, 3]
    assert all(max(each) - min(each) < 2e-6 < max(each) for each in calls)
    amp.close()


def test_steps_of_fit_are_noted_with_their_losses_in_each_epoch(run_folder):
    RunRequest("steps", (12,)).write(run_folder)
    amp, model, optimizer = prepared("float32", loss_scale=4.0)
    optimizer.inner_optimizer.learning_rate = 0.0  # each epoch has the losses of the first
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    x, y = batch(16)
    expected = [float(mean_square(model(x[row : row + 4]), y[row : row + 4])) for row in range(0, 16, 4)]
    with pytest.raises(SystemExit):
        model.fit(x, y, batch_size=4, epochs=4, shuffle=False, verbose=0)
    losses = [loss for turn in noted(run_folder) for loss in turn["losses"]]
    assert losses == pytest.approx(expected * 3, rel=1e-5)
    amp.close()


def test_retraced_steps_are_noted_in_their_order(run_folder):
    RunRequest("steps", (4, 12)).write(run_folder)
    amp, model, optimizer = prepared("float32", loss_scale=4.0)
    own = train(FORMS["xla"](step_of(amp, model, optimizer)), rows=lambda call: 4 * (1 + call % 3))
    losses = [loss for turn in noted(run_folder) for loss in turn["losses"]]
    assert losses[: len(own)] == pytest.approx(own, rel=1e-6)
    amp.close()


def test_a_call_of_more_steps_than_are_kept(run_folder, monkeypatch):
    """All are counted; the losses of the first ones are not known."""
    monkeypatch.setattr(xla_steps, "KEPT", 4)
    RunRequest("steps", (12,)).write(run_folder)
    amp, model, optimizer = prepared("float32", loss_scale=4.0)
    own = train(FORMS["xla of a loop"](step_of(amp, model, optimizer)))
    (turn,) = noted(run_folder)
    assert turn["losses"][:2] == [None, None]
    assert turn["losses"][2:LOOP] == pytest.approx(own[2:], rel=1e-6)
    assert len(turn["losses"]) == 2 * LOOP
    amp.close()


def test_closing_leaves_tensorflow_as_it_was(run_folder):
    RunRequest("steps", (12,)).write(run_folder)
    first, second = prepared("float32")[0], prepared("float32")[0]
    function = type(tf.function(lambda: tf.constant(0)))
    assert function.__call__ is not CALLED
    first.close()
    assert function.__call__ is not CALLED
    second.close()
    assert function.__call__ is CALLED
