"""``AmpCallback``: a session inside Keras's own ``fit``, its numbers in the logs, its state in Keras's checkpoints."""

import csv
import json
import math
import re

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, keras, mlp, prepared  # noqa: E402

from unifiedamp.integrations.keras import AmpCallback  # noqa: E402
from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
FORMS = [
    pytest.param({"run_eagerly": True}, id="eager"),
    pytest.param({"jit_compile": False}, id="graph"),
    pytest.param({"jit_compile": True}, id="xla"),
]
SEVERAL = {"jit_compile": False, "steps_per_execution": 2}


def probe(form, values=(1.0,), **options):
    """A probe whose gradients are its input, compiled for ``fit``; fit(gradients) makes a batch of each."""
    amp = ua.Amp("tensorflow", "float32", **{"loss_scale": SCALE, **options})
    model, optimizer = amp.prepare(Probe(list(values)), keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss=lambda target, output: output, **form)

    def fit(gradients, callbacks, **arguments):
        x = np.float32(gradients).reshape(-1)
        arguments = {"batch_size": len(values), "shuffle": False, "verbose": 0, **arguments}
        return model.fit(x, np.zeros_like(x), callbacks=callbacks, **arguments)

    return amp, model, fit


class Each(keras.callbacks.Callback):
    """Writes down what it sees after each batch and epoch."""

    def __init__(self, amp=None):
        super().__init__()
        self.amp, self.batches, self.epochs, self.weights, self.good = amp, [], [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append({name: float(value) for name, value in logs.items()})
        if self.amp is not None:
            self.weights.append(float(self.model.ws[0].numpy()[0]))
            self.good.append(self.amp.state_dict()["state"]["good_steps"])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append({name: float(value) for name, value in logs.items()})


# -- the canonical trace ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [INF, -INF, math.nan])
def test_the_canonical_trace(form, bad):
    amp, _, fit = probe(form)
    seen = Each(amp)
    fit([1.0, 1.0, 1.0, bad, 1.0, 1.0, 1.0], [seen, AmpCallback(amp)])
    assert seen.weights == pytest.approx([0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.4], abs=1e-6)
    # What each batch logs is the scale of the next.
    assert [logs["loss_scale"] for logs in seen.batches] == [4.0, 4.0, 8.0, 4.0, 4.0, 4.0, 8.0]
    assert [logs["skipped_steps"] for logs in seen.batches] == [0, 0, 0, 1, 1, 1, 1]
    assert seen.good == [1, 2, 0, 0, 1, 2, 0]
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (6, 1, 8.0)


def test_several_steps_per_call_log_their_last():
    amp, _, fit = probe(SEVERAL)
    seen = Each()
    fit([1.0, 1.0, 1.0, INF, 1.0, 1.0], [AmpCallback(amp), seen])
    assert [logs["loss_scale"] for logs in seen.batches] == [4.0, 4.0, 4.0]
    assert [logs["skipped_steps"] for logs in seen.batches] == [0, 1, 1]


# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_history_files_and_validation(tmp_path, first):
    """The order of callbacks does not matter; evaluation logs nothing of ours."""
    amp, model, fit = probe({})
    csv_logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    callbacks = [AmpCallback(amp), csv_logger]
    x = np.float32([1.0])
    history = fit([1.0, INF], callbacks if first else callbacks[::-1], epochs=2, validation_data=(x, x)).history
    assert set(history) == {"loss", "val_loss", "loss_scale", "skipped_steps"}
    assert (history["loss_scale"], history["skipped_steps"]) == ([2.0, 1.0], [1, 2])
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["loss_scale"]) for row in rows] == [2.0, 1.0]
    assert set(model.evaluate(x, x, verbose=0, return_dict=True)) == {"loss"}
    assert set(model.train_on_batch(x, x, return_dict=True)) == {"loss"}
    assert set(fit([1.0], []).history) == {"loss"}


def test_the_progress_bar_shows_them(capsys):
    amp, _, fit = probe({})
    fit([1.0, 1.0], [AmpCallback(amp)], verbose=2)
    shown = capsys.readouterr().out
    assert re.search(r"loss_scale: 4\.0", shown)
    assert "skipped_steps: 0" in shown


def test_tensorboard_gets_them(tmp_path):
    pytest.importorskip("tensorboard")
    amp, _, fit = probe({})
    fit([1.0, INF], [AmpCallback(amp), keras.callbacks.TensorBoard(str(tmp_path), write_graph=False)])
    found = {}
    for file in tmp_path.rglob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag] = float(tf.make_ndarray(value.tensor)) if value.HasField("tensor") else None
    assert found["epoch_loss_scale"] == 2.0
    assert found["epoch_skipped_steps"] == 1.0


def test_metrics_of_an_epoch_are_those_of_keras():
    def fitted(*callbacks):
        amp, model, optimizer = prepared("float32", loss_scale=8.0)
        model.set_weights([np.full(weight.shape, 0.1) for weight in model.get_weights()])
        model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
        x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
        use = [AmpCallback(amp)] if callbacks else []
        return model.fit(x, x[:, :2], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=use).history

    ours, plain = fitted(True), fitted()
    for name, values in plain.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-6)


def test_a_session_without_a_scale():
    amp, model, optimizer = prepared("mixed_bfloat16")
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0, callbacks=[AmpCallback(amp)]).history
    assert (history["loss_scale"], history["skipped_steps"]) == ([1.0], [0])


# -- recording -------------------------------------------------------------------------------------------------------


def of_kind(records, kind):
    return [record for record in records if record["kind"] == kind]


@pytest.mark.parametrize("form", [*FORMS, pytest.param(SEVERAL, id="several")])
def test_fit_is_recorded(form):
    amp, _, fit = probe(form, values=(1.0, 1.0))
    records, gradients = [], [(1.0, 2.0**-30), (2.0, 1.0), (INF, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)]
    fit(gradients, [AmpCallback(amp, records.append, every=3)])
    steps = of_kind(records, "step")
    assert [(each["step"], each["reason"], each["applied"]) for each in steps] == [
        (1, "first", True), (3, "every", False), (4, "after a skip", True), (6, "every", True),
    ]  # fmt: skip
    assert [(each["scale"], each["next_scale"]) for each in steps] == [(4.0, 4.0), (4.0, 2.0), (2.0, 2.0), (2.0, 4.0)]
    assert steps[0]["gradients"]["w1"]["true"]["exponents"] == {"-30": 1}
    assert steps[0]["gradients"]["w1"]["scaled"]["exponents"] == {"-28": 1}
    assert steps[3]["gradients"]["w0"]["true"]["exponents"] == {"2": 1}
    assert steps[1]["non_finite"]["gradients"] == ["w0"]
    (epoch,) = of_kind(records, "numbers")
    assert (epoch["step"], epoch["skipped_steps"], epoch["numbers"]["epoch"]) == (6, 1, 0)
    assert epoch["numbers"]["loss_scale"] == epoch["scale"] == 4.0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_recording_changes_nothing_and_sees_layers(policy, form):
    def fitted(*targets):
        amp, model, optimizer = prepared(policy)
        model.set_weights([np.full(weight.shape, 0.1) for weight in model.get_weights()])
        model.compile(optimizer=optimizer, loss="mse", **form)
        x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
        callbacks = [AmpCallback(amp, *targets, every=2)]
        history = model.fit(x, x[:, :2], batch_size=8, shuffle=False, verbose=0, callbacks=callbacks).history
        return model.get_weights(), history["loss"], amp

    records = []
    weights, loss, amp = fitted(records.append)
    expected, expected_loss, _ = fitted()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    steps = of_kind(records, "step")
    assert [each["step"] for each in steps] == [1, 2]
    for each in steps:
        assert {"hidden", "out"} <= {row["layer"] for row in each["activations"] if row["place"] == "output"}
        assert len(each["gradients"]) == 4
        assert each["loss"] > 0
    assert amp.applied_steps == 3


def test_windows_are_recorded_whole():
    amp, _, fit = probe({}, accumulate_steps=2)
    records = []
    fit([1.0, 3.0, 8.0, 8.0, 1.0, 1.0], [AmpCallback(amp, records.append, every=2)])
    steps = of_kind(records, "step")
    assert [each["step"] for each in steps] == [1, 2]
    # The sum over a window of the gradients, each divided by its length: the mean.
    assert [list(each["gradients"]["w0"]["true"]["exponents"]) for each in steps] == [["1"], ["3"]]


def test_without_steps_only_epochs_are_recorded():
    amp, _, fit = probe({})
    records = []
    fit([1.0, 1.0], [AmpCallback(amp, records.append, every=None)], epochs=2)
    assert [record["kind"] for record in records] == ["header", "numbers", "numbers"]


def test_a_recording_is_read_back(tmp_path):
    from unifiedamp.recording.reading import read_recording

    amp, _, fit = probe({})
    callback = AmpCallback(amp, tmp_path / "run.jsonl", every=2)
    fit([1.0, 1.0], [callback])
    fit([1.0, INF], [callback])
    found = read_recording(tmp_path / "run.jsonl")
    assert [header["first_step"] for header in found.headers] == [1, 3]
    assert [step["step"] for step in found.steps] == [1, 2, 3, 4]
    assert (len(found.numbers), found.damaged) == (2, 0)


# -- how fit ends ----------------------------------------------------------------------------------------------------


class Told:
    def __init__(self):
        self.calls = []

    def write(self, record):
        self.calls.append(record["kind"])

    def fail(self, error):
        self.calls.append(type(error).__name__)

    def close(self):
        self.calls.append("close")


class Interrupting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("form", FORMS)
def test_exhaustion_ends_fit_and_the_recording(form):
    scale = ua.DynamicLossScale(initial_scale=4.0, max_consecutive_skips=3)
    amp, _, fit = probe(form, loss_scale=scale)
    told = Told()
    with pytest.raises(ua.LossScaleExhausted, match="3 steps in a row"):
        fit([INF] * 9, [AmpCallback(amp, told)])
    assert told.calls[-2:] == ["LossScaleExhausted", "close"]
    assert amp.skipped_steps == 3


def test_any_exception_ends_the_recording_and_the_next_fit_works():
    amp, model, fit = probe({})
    told = Told()
    callback = AmpCallback(amp, told)
    with pytest.raises(KeyboardInterrupt):
        fit([1.0, 1.0], [callback, Interrupting()])
    assert told.calls == ["header", "step", "KeyboardInterrupt", "close"]
    assert set(model.train_on_batch(np.float32([1.0]), np.float32([1.0]), return_dict=True)) == {"loss"}
    fit([1.0], [callback])
    assert told.calls[4:] == ["header", "step", "numbers", "close"]


def test_mistakes():
    with pytest.raises(ua.WrongObjectError, match="AmpCallback takes a session"):
        AmpCallback("tensorflow")
    amp, _, _ = probe({})
    other = mlp()
    other.compile("sgd", "mse")
    with pytest.raises(ua.WrongObjectError, match=r"not given to this session's amp.prepare"):
        other.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0, callbacks=[AmpCallback(amp)])


def test_a_closed_session_leaves_fit_to_keras():
    amp, model, fit = probe({})
    fit([1.0], [AmpCallback(amp)])
    amp.close()
    assert not {"fit", "make_train_function"} & set(vars(model))
    assert set(fit([1.0], []).history) == {"loss"}


# -- checkpoints -----------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", ["model.weights.h5", *([] if SCALES_LOSS else ["checkpoint"])])
def test_model_checkpoint_holds_the_session(tmp_path, name):
    path = str(tmp_path / name)
    amp, _, fit = probe({})
    fit(BATCHES, [AmpCallback(amp), keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
    again, model, _ = probe({})
    model.load_weights(path)
    assert again.state_dict() == amp.state_dict()


def test_a_checkpoint_of_tensorflow_holds_the_session(tmp_path):
    amp, model, fit = probe({})
    fit(BATCHES, [])
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "ckpt"))
    again, model, _ = probe({})
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(saved)
    assert again.state_dict()["state"] == amp.state_dict()["state"]


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 saves no loss scale in weights files")
def test_weights_of_keras_own_optimizer_bring_their_scale(tmp_path):
    model = mlp()
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0), "mse")
    x = np.ones((4, 4), np.float32)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    amp, ours, optimizer = prepared("float32", loss_scale=ua.DynamicLossScale(initial_scale=4.0))
    ours.compile(optimizer=optimizer, loss="mse")
    ours.load_weights(tmp_path / "model.weights.h5")
    assert amp.loss_scale == 64.0
    assert amp.state_dict()["state"]["good_steps"] == 3
    assert json.dumps(amp.state_dict())


def test_a_loaded_scale_keeps_to_the_bounds(tmp_path):
    _, _, fit = probe({}, loss_scale=ua.DynamicLossScale(initial_scale=2.0**20, growth_interval=100))
    fit([1.0] * 5, [keras.callbacks.ModelCheckpoint(str(tmp_path / "m.weights.h5"), save_weights_only=True)])
    bounded, model, _ = probe({}, loss_scale=ua.DynamicLossScale(initial_scale=4.0, max_scale=16.0, growth_interval=3))
    model.load_weights(str(tmp_path / "m.weights.h5"))
    assert bounded.loss_scale == 16.0
    assert bounded.state_dict()["state"]["good_steps"] == 2
