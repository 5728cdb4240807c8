"""A step that is interrupted at any call of torch's, by an error or a signal: nothing of it is left behind."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import unifiedamp as ua
from unifiedamp_torch.conformance.harness import harness

SCALE = ua.DynamicLossScale(initial_scale=64.0, growth_interval=1, max_scale=2.0**20)


class Interrupted(BaseException):
    """Not an ``Exception``, as Ctrl-C is none."""


class At(TorchFunctionMode):
    """Raises at one of the calls of torch's functions, before it or after it."""

    def __init__(self, left, after):
        self.left, self.after, self.fired = left, after, False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        now = self.left == -1
        self.fired = self.fired or now
        if now and not self.after:
            raise Interrupted
        result = function(*args, **(kwargs or {}))
        if now:
            raise Interrupted
        return result


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_each_call_of_a_step(after, clips):
    """The loss scale grows with each step. After an interruption, the next loss is scaled by what the session says, and
    its step is whole.
    """
    amp = ua.Amp("torch", "float32", loss_scale=SCALE, device="cpu")
    model = harness.probe([10.0, 10.0])
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.0))
    x, state, before = torch.tensor([1.0, 2.0]), amp.state_dict(), harness.global_state()

    def step():
        amp.backward(lambda: model(x), optimizer)
        if clips:
            amp.clip_grad_norm(optimizer, 1e6)
        amp.step(optimizer)

    count = 0
    while True:
        mode = At(count, after)
        try:
            with mode:
                step()
        except Interrupted:
            pass
        if not mode.fired:
            break
        assert harness.global_state() == before
        amp.discard_step(optimizer)
        weights, scale = harness.parameters(model), amp.loss_scale
        with amp.autocast():
            loss = model(x)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            assert scaled_loss.value.item() == loss.item() * scale, count
            scaled_loss.backward()
        assert amp.step(optimizer).applied
        moved = [float(weights[name][0] - value[0]) for name, value in harness.parameters(model).items()]
        assert moved == [0.5, 1.0], count
        amp.load_state_dict(state)
        count += 1
    assert count > 5


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_region_that_cannot_be_left(monkeypatch, policy):
    amp = ua.Amp("torch", policy, device="cpu")
    model = torch.nn.Linear(2, 1)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    before, x = harness.global_state(), torch.ones(1, 2)

    def fail(*_):
        raise Interrupted

    with monkeypatch.context() as changed:

        def loss():
            changed.setattr(torch.autocast, "__exit__", fail)
            return model(x).sum()

        with pytest.raises(Interrupted):
            amp.backward(loss, optimizer)
    assert harness.global_state() == before
    assert not torch.is_autocast_enabled("cpu")
    amp.backward(lambda: model(x).sum(), optimizer)
    assert amp.step(optimizer).applied
