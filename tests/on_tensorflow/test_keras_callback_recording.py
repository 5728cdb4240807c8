"""``AmpCallback`` records ``fit``, and ends the recording however ``fit`` ends."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from fit_runs import INF, SEVERAL, probe  # noqa: E402
from models import FIT_FORMS, keras, mlp, prepared  # noqa: E402

from unifiedamp.integrations.keras import AmpCallback  # noqa: E402


def of_kind(records, kind):
    return [record for record in records if record["kind"] == kind]


@pytest.mark.parametrize("form", [*FIT_FORMS, pytest.param(SEVERAL, id="several")])
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


@pytest.mark.parametrize(
    "form", [*FIT_FORMS, *({"jit_compile": False, "steps_per_execution": n} for n in (2, 4))], ids=str
)
def test_losses_are_those_of_the_recorded_steps(form):
    """By weights in float64; Keras itself gives the mean over the epoch so far."""
    gradients = [(1.0, 2.0), (2.0, 1.0), (4.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0), (-1.0, 0.5), (2.0, 2.0)]
    amp, _, fit = probe(form, values=(1.0, 1.0))
    records, weights, expected = [], np.ones(2), {}
    fit(gradients, [AmpCallback(amp, records.append, every=2)])
    for step, gradient in enumerate(gradients, 1):
        expected[step] = float(weights @ gradient)
        weights = weights - 0.1 * np.array(gradient)
    found = {each["step"]: each["loss"] for each in of_kind(records, "step")}
    assert {2, 4, 6, 8} <= set(found)
    assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("form", FIT_FORMS)
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


@pytest.mark.parametrize("form", FIT_FORMS)
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
