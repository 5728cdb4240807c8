"""Steps that core does not see, and calls for several optimizers that are interrupted, over the toy backend."""

import numpy as np
import pytest
from toy.harness import harness
from toy.training import ToyTraining

import unifiedamp as ua
from unifiedamp.loss_scale import ScaleState
from unifiedamp.training.scale_monitor import POLL_INTERVAL


@pytest.mark.parametrize("several", [1, 5, POLL_INTERVAL + 1])
def test_exhaustion_is_noticed_as_soon_whatever_one_call_runs(monkeypatch, several):
    """Of steps of a framework's own loop, which come several at once."""
    calls = []
    monkeypatch.setattr(ToyTraining, "on_native_steps", lambda _, *given: calls.extend(given))
    amp = ua.Amp("toy", loss_scale=ua.DynamicLossScale(max_consecutive_skips=3))
    monkeypatch.setattr(amp.backend.device, "reads_without_sync", False)
    amp.backend.training.write_state(ScaleState(8.0, bad_steps=7, skipped_steps=7))
    amp.step_loop.monitor.expect(ScaleState(8.0))
    ran = 0
    with pytest.raises(ua.LossScaleExhausted):
        for _ in range(4 * POLL_INTERVAL):
            ran += several
            calls[0](several)
    assert ran <= 2 * POLL_INTERVAL + several


def test_each_optimizer_of_an_interrupted_call_is_refused(monkeypatch):
    """Where the parameters of some may be partly updated; each goes on once it is discarded."""
    amp = ua.Amp("toy", loss_scale=4.0)
    models = [harness.probe([1.0]) for _ in range(3)]
    *models, one, two, other = amp.prepare(*models, *(harness.sgd([model], 0.5) for model in models))
    x = amp.to_native(np.ones(1, np.float32))

    def fails():
        raise KeyError

    with monkeypatch.context() as changed:
        changed.setattr(amp.backend.training, "rollback", lambda _: True)
        with pytest.raises(KeyError):
            amp.backward(fails, [one, two])
    amp.backward(lambda: models[2](x), other)
    for model, optimizer in zip(models, (one, two), strict=False):
        with pytest.raises(ua.StepOrderError, match="interrupted by KeyError"):
            amp.backward(lambda model=model: model(x), optimizer)
    for model, optimizer in zip(models, (one, two), strict=False):
        amp.discard_step(optimizer)
        amp.backward(lambda model=model: model(x), optimizer)
        assert amp.step(optimizer).applied
