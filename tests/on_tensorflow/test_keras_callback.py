"""``AmpCallback``: a session inside Keras's own ``fit``, and its numbers in the logs."""

import csv
import math
import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from fit_runs import INF, SEVERAL, Each, probe  # noqa: E402
from models import FIT_FORMS, keras, prepared  # noqa: E402

from unifiedamp.integrations.keras import AmpCallback  # noqa: E402


@pytest.mark.parametrize("form", FIT_FORMS)
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
