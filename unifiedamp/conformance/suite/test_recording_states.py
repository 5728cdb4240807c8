"""``amp.record(states=True)``: weights and optimizer states, in the form in which they train, and other formats."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.recorded import Kept, batch, layers, mlp_run
from unifiedamp.recording import Alert, Alerts

pytestmark = pytest.mark.needs("recording")

GRADIENT = 2.0**-6
MOMENTS = {"exp_avg", "m", "momentum", "mean", "mu"}, {"exp_avg_sq", "v", "velocity", "var", "nu"}
"""What optimizers call Adam's first moment and its second one."""


@pytest.fixture
def counting(harness):
    """Skip where the backend counts no states, after it has refused to."""
    run = probe_run(harness, loss_scale=4.0)
    if not run.amp.backend.recorder.records_states:
        with pytest.raises(ua.UnsupportedError, match="states=True"):
            run.amp.record(Kept(), states=True)
        pytest.skip("this backend does not count optimizer states, and says so")


@pytest.mark.usefixtures("counting")
def test_adams_moments_and_weights_are_recorded(harness, form):
    """Against numpy in float64: after n steps with the gradient g, (1 - 0.9**n) g and (1 - 0.999**n) g**2; the update
    is the learning rate.
    """
    run = probe_run(harness, form, values=(1.0, 0.0), optimizer="adam", lr=2.0**-10, loss_scale=4.0)
    kept = Kept()
    with run.amp.record(kept, every=3, states=True):
        for _ in range(6):
            run.feed(GRADIENT, 0.0)
    weights = {name: np.float64(value).ravel() for name, value in harness.parameters(run.model).items()}
    records = kept.of("step")
    assert [record["step"] for record in records] == [1, 3, 6]
    for record in records:
        trained, idle = (record["states"][name] for name in ("w0", "w1"))
        n = record["step"]
        moments = np.float64([(1 - 0.9**n) * GRADIENT, (1 - 0.999**n) * GRADIENT**2])
        told = {name: each for name, each in trained.items() if name not in ("weight", "update")}
        assert sorted(each["norm"] for each in told.values())[-2:] == pytest.approx(sorted(moments), rel=1e-3)
        for names, moment in zip(MOMENTS, moments, strict=True):
            assert [told[name]["norm"] for name in names & told.keys()] in ([], [pytest.approx(moment, rel=1e-3)])
        for each in told.values():
            assert each["exponents"] == {str(int(np.floor(np.log2(each["norm"])))): 1}
            assert each["dtype"] == "float32"
        assert trained["update"]["norm"] == pytest.approx(2.0**-10, rel=1e-3)
        assert idle["weight"]["zero"] == 1
        assert all(each["norm"] == 0 for each in idle.values())
    assert records[-1]["states"]["w0"]["weight"]["norm"] == pytest.approx(abs(weights["w0"][0]), rel=1e-6)


@pytest.mark.parametrize("layerwise", [False, True])
def test_recording_never_changes_what_trains(harness, form, layerwise):
    """Bit for bit, in the form in which the loop runs; layers alone may need a recorded step to run as plain Python."""
    ended = []
    for every in (None, 1, 3):
        amp, model, _, feed = mlp_run(harness, form, layers(4, 8, 2), loss_scale="dynamic")
        recorder = amp.backend.recorder
        if layerwise and recorder.runs_uncompiled and not form.startswith("eager"):
            pytest.skip("this backend runs recorded steps uncompiled for their layers, and says so")
        if every:
            amp.record(Kept(), every=every, activations=layerwise, states=recorder.records_states)
        losses = [np.float32(amp.to_numpy(feed(batch(seed=seed)))).tobytes() for seed in range(7)]
        weights = {name: np.asarray(value).tobytes() for name, value in harness.parameters(model).items()}
        ended.append((losses, weights, amp.state_dict()["state"]))
        amp.close()
    assert ended[1] == ended[0]
    assert ended[2] == ended[0]


def test_what_a_format_that_is_not_in_use_would_lose(harness, form):
    """2**-27 is below half of the smallest float16, and above what bfloat16 flushes."""
    fired = []
    rules = Alerts(*(
        Alert("gradient_flushed", above=0.5, format=name, then=fired.append) for name in ("float16", "bfloat16")
    ))  # fmt: skip
    run = probe_run(harness, form, values=(0.0, 0.0), loss_scale=4.0)
    with run.amp.record(rules, Kept()):
        run.feed(1.0, 2.0**-27)
    assert [str(each) for each in fired] == ["step 1: gradient_flushed in float16 of 'w1' is 1, above 0.5"]
