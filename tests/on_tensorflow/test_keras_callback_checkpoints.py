"""Keras's checkpoints hold the session: a resumed ``fit`` is the uninterrupted one."""

import json

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from fit_runs import INF, Each, probe  # noqa: E402
from models import SCALES_LOSS, keras, mlp, prepared  # noqa: E402

from unifiedamp.integrations.keras import AmpCallback  # noqa: E402

KEPT = ua.DynamicLossScale(initial_scale=4.0, growth_interval=5, hysteresis=3, hysteresis_reset="growth")
"""After ``BATCHES``, one more overflow makes it back off."""
SCALES = {"plain": {}, "hysteresis": {"loss_scale": KEPT}}
BATCHES = [1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, INF, 1.0, 1.0]


class StopAfter(keras.callbacks.Callback):
    """Ends the process, as it were, after an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.last = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch > self.last:
            raise KeyboardInterrupt


def outcome(amp, model, seen):
    return [float(weight.numpy()[0]) for weight in model.ws], amp.state_dict()["state"], seen.epochs


@pytest.mark.parametrize("options", [{}, {"accumulate_steps": 3}], ids=["plain", "windows"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, options):
    """BackupAndRestore, after each of three epochs of ten batches; windows of 3 are open in between."""

    def run(folder, stop=None):
        amp, model, fit = probe({}, **options)
        seen = Each()
        backup = keras.callbacks.BackupAndRestore(str(folder))
        callbacks = [AmpCallback(amp), backup, seen, *([StopAfter(stop)] if stop is not None else [])]
        try:
            fit(BATCHES, callbacks, epochs=3)
        except KeyboardInterrupt:
            return None
        return outcome(amp, model, seen)

    weights, state, epochs = run(tmp_path / "whole")
    assert run(tmp_path / "parts", stop=0) is None
    assert run(tmp_path / "parts", stop=1) is None
    resumed_weights, resumed_state, resumed_epochs = run(tmp_path / "parts")
    assert resumed_weights == weights
    assert resumed_state == state
    assert resumed_epochs == epochs[2:]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["model.weights.h5", *([] if SCALES_LOSS else ["checkpoint"])])
def test_model_checkpoint_holds_the_session(tmp_path, name, scale):
    path = str(tmp_path / name)
    amp, _, fit = probe({}, **SCALES[scale])
    fit(BATCHES, [AmpCallback(amp), keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
    again, model, _ = probe({}, **SCALES[scale])
    model.load_weights(path)
    assert again.state_dict() == amp.state_dict()


@pytest.mark.parametrize("scale", SCALES)
def test_a_checkpoint_of_tensorflow_holds_the_session(tmp_path, scale):
    amp, model, fit = probe({}, **SCALES[scale])
    fit(BATCHES, [])
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "ckpt"))
    again, model, _ = probe({}, **SCALES[scale])
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(saved)
    assert again.state_dict()["state"] == amp.state_dict()["state"]


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 saves no loss scale in weights files")
@pytest.mark.parametrize(("largest", "taken"), [(2.0**24, 64.0), (16.0, 16.0)])
def test_weights_of_keras_own_optimizer_bring_their_scale(tmp_path, largest, taken):
    """Within the bounds of the session."""
    model = mlp()
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0), "mse")
    x = np.ones((4, 4), np.float32)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    amp, ours, optimizer = prepared("float32", loss_scale=ua.DynamicLossScale(4.0, max_scale=largest))
    ours.compile(optimizer=optimizer, loss="mse")
    ours.load_weights(tmp_path / "model.weights.h5")
    assert amp.loss_scale == taken
    assert amp.state_dict()["state"]["good_steps"] == 3
    assert json.dumps(amp.state_dict())


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 saves no loss scale in weights files")
def test_keras_own_optimizer_goes_on_from_the_sessions_scale(tmp_path):
    """Which grew once, a step before the file was saved."""
    amp, ours, optimizer = prepared("float32", loss_scale=ua.DynamicLossScale(4.0, growth_interval=2))
    ours.compile(optimizer=optimizer, loss="mse")
    x = np.ones((4, 4), np.float32)
    ours.fit(x, x[:, :2], epochs=3, verbose=0)
    ours.save_weights(tmp_path / "model.weights.h5")
    model = mlp()
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0), "mse")
    model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "model.weights.h5")
    assert float(model.optimizer.dynamic_scale.numpy()) == amp.loss_scale == 8.0
    assert int(model.optimizer.step_counter.numpy()) == 1


def test_a_file_without_an_open_window_ends_one(tmp_path):
    path = str(tmp_path / "m.weights.h5")
    amp, model, fit = probe({}, accumulate_steps=2, loss_scale=4.0)
    fit([1.0, 1.0], [])
    model.save_weights(path)
    fit([100.0], [])
    model.load_weights(path)
    fit([1.0, 3.0], [])
    assert float(model.ws[0].numpy()[0]) == pytest.approx(1.0 - 0.1 - 0.2, abs=1e-6)
    assert amp.applied_steps == 2


def test_a_loaded_scale_keeps_to_the_bounds(tmp_path):
    _, _, fit = probe({}, loss_scale=ua.DynamicLossScale(initial_scale=2.0**20, growth_interval=100))
    fit([1.0] * 5, [keras.callbacks.ModelCheckpoint(str(tmp_path / "m.weights.h5"), save_weights_only=True)])
    bounded, model, _ = probe({}, loss_scale=ua.DynamicLossScale(initial_scale=4.0, max_scale=16.0, growth_interval=3))
    model.load_weights(str(tmp_path / "m.weights.h5"))
    assert bounded.loss_scale == 16.0
    assert bounded.state_dict()["state"]["good_steps"] == 2
