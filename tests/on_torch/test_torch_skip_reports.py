"""Reports on the last skipped step, kept on the device without synchronizing, in eager and captured steps."""

import pytest
import torch
from captured import Recorded
from tape import TapeCapturer

from unifiedamp_torch.training.nonfinite import LastLoss, SkipReports
from unifiedamp_torch.training.steps import CaptureDeferred


def last_layer_alone(run, x, y):
    """Small batches train the last layer alone; where a batch holds an inf, the gradient of its bias becomes inf."""
    amp, layers = run.amp, run.model[0]
    with amp.autocast():
        inner = layers[:3](x.clamp(-9, 9))
        loss = torch.nn.functional.cross_entropy(layers[3](inner if len(y) == 32 else inner.detach()), y)
    with amp.scale_loss(loss, run.optimizer) as scaled_loss:
        scaled_loss.backward()
    layers[3].bias.grad.add_(torch.where(x.isinf().any(), torch.inf, 0.0))
    amp.step(run.optimizer)
    return loss


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("bad", [15, 16])
def test_steps_that_train_other_parameters_each_time(monkeypatch, captured, bad):
    """Both are captured, and a skip of one is known after further steps of the other."""
    run, records = Recorded(monkeypatch, captured=captured, body=last_layer_alone), []
    with run.amp.record(records.append, every=20):
        for seed in range(1, 21):
            run.feed(seed, bad=seed == bad, size=32 if seed % 2 else 16)
    (skip,) = [record for record in records if record["kind"] == "skip"]
    assert skip["count"] == run.amp.skipped_steps == 1
    assert skip["non_finite"]["gradients"] == ["0.3.bias"]
    assert skip["non_finite"]["loss_was_finite"] is True
    if captured:
        assert len({graph.inputs[0].shape for graph in run.inner.graphs}) == 2


def test_a_step_is_captured_after_one_whose_tensors_its_replays_write_to():
    """Replays would clear tensors of the capture's own, and forget the last skip with the next applied step."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, gradient, found = torch.optim.SGD([weight], lr=0.1), torch.ones(2), torch.zeros(())
    reports = SkipReports(lambda _: {"weight": gradient}, lambda _: ["weight"], LastLoss(True), False)
    reports.keep_on_device(True)
    with pytest.raises(CaptureDeferred):
        reports.inspect(optimizer, found, capturing=True)
    reports.inspect(optimizer, found, capturing=False)
    replay, _ = TapeCapturer().capture(lambda: reports.inspect(optimizer, found, capturing=True))
    for value, skipped in ((1.0, 0.0), (torch.inf, 1.0), (1.0, 0.0)):
        gradient.fill_(value)
        found.fill_(skipped)
        replay()
    assert reports.report().tensors == ("weight",)
    assert reports.report().loss_was_finite is None


def test_the_last_skip_of_any_optimizer_is_told():
    gradients, found = {"a": torch.tensor([torch.inf]), "b": torch.tensor([torch.nan])}, torch.ones(())
    named = {torch.optim.SGD([torch.ones(1)], lr=0.1): name for name in gradients}
    loss = LastLoss(True)
    reports = SkipReports(lambda each: {named[each]: gradients[named[each]]}, lambda each: [named[each]], loss, False)
    reports.keep_on_device(True)
    one, other = named
    for optimizer, value in ((one, 1.0), (other, torch.inf), (one, 1.0)):
        loss.note(torch.tensor(value), alone=True)
        reports.inspect(optimizer, found, capturing=False)
        assert reports.report().tensors == (named[optimizer],)
        assert reports.report().loss_was_finite is (value == 1.0)
