"""A policy over the course of a run, in captured steps and around what users put on models."""

import pytest
import torch
from captured import Trained, assert_same
from loops import batch, session
from tape import TapeCapturer
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import WARM_UP
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates

AT, STEPS = 8, 14
FLOAT8 = "mixed_float8;emulate=true"
PAIRS = [("float32", "mixed_bfloat16"), (FLOAT8, "mixed_bfloat16"), ("mixed_bfloat16", f"{FLOAT8};recipe=delayed")]


class Scheduled(Trained):
    """Captured as ``amp.compile`` does it on a GPU, counts and all."""

    def _captured(self, step):
        backend, device = self.amp.backend, self.amp.backend.device.native
        if device.type != "cuda":
            self.stage, rates = TapeCapturer(), DeviceLearningRates(device)
            backend.compiler.replays_traces = True
            backend.compiler._capture_context = CaptureContext(
                self.stage, rates, backend.compiler.steps, backend.spec, device.type, backend.recorder
            )
        return self.amp.compile(step, mode="default")


def wide():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_captured_step_is_captured_once_more(monkeypatch, first, second):
    """And skips before, at and after the switch are those of the eager form."""
    runs, given = [], []
    for captured in (False, True):
        run = Scheduled(monkeypatch, captured, policy=None, schedule={0: first, AT: second}, model=wide)
        given.append([run.feed(step, bad=step in (AT - 1, AT + 3)) for step in range(STEPS)])
        assert run.amp.policy == ua.Policy.parse(second).replace(loss_scale=run.amp.loss_scale_settings)
        assert run.amp.state_dict()["schedule"]["step"] == STEPS
        runs.append(run)
    assert_same(runs, given)
    if runs[1].stage is not None:
        assert runs[1].stage.captures == 2


def test_a_switch_at_the_first_capture_runs_uncaptured_once(monkeypatch):
    """What compiles for the new policy cannot do so inside a capture."""
    run = Scheduled(monkeypatch, True, policy=None, schedule={0: "float32", WARM_UP: "mixed_bfloat16"})
    captures = []
    for step in range(WARM_UP + 3):
        run.feed(step)
        captures.append(None if run.stage is None else run.stage.captures)
    if run.stage is not None:
        assert captures[WARM_UP - 1 :] == [0, 0, 1, 1]


def test_many_switches_are_captured_each(monkeypatch):
    schedule = {step: ("float32", "mixed_bfloat16")[step // 8 % 2] for step in range(0, 80, 8)}
    run = Scheduled(monkeypatch, True, policy=None, schedule=schedule)
    for step in range(80):
        run.feed(step)
    if run.stage is not None:
        assert run.stage.captures == len(schedule)


def test_a_region_that_was_kept_follows_the_policy():
    amp = ua.Amp("torch", schedule={0: "float32", 1: "mixed_bfloat16"}, device="cpu")
    model = wide()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    region, found = amp.autocast(), []
    for _ in range(2):
        amp.autocast()  # the order of calls asks for it
        with region:
            found.append(model[0](torch.ones(2, 8)).dtype)
            loss = model(torch.ones(2, 8)).sum()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
    assert found == [torch.float32, torch.bfloat16]


def test_a_forward_that_the_user_replaced_stays(monkeypatch):
    amp = ua.Amp("torch", schedule={0: FLOAT8, 1: "mixed_bfloat16"}, device="cpu")
    model = wide()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inner, calls = model[2].forward, []

    def mine(x):
        calls.append(x.shape)
        return inner(x)

    model[2].forward = mine
    for _ in range(2):
        amp.backward(lambda: model(torch.ones(16, 8)).sum(), optimizer)
        amp.step(optimizer)
    assert len(calls) == 2
    assert model[2].forward is mine
    with amp.autocast():
        found = model[2](torch.ones(16, 16))
    torch.testing.assert_close(found, torch.nn.functional.linear(
        torch.ones(16, 16).bfloat16(), model[2].weight.bfloat16(), model[2].bias.bfloat16()))  # fmt: skip
    amp.close()
    assert model[2].forward is mine


def test_what_casts_by_one_policy_is_refused():
    amp = ua.Amp("torch", schedule={0: "mixed_bfloat16", 1: "mixed_float16;loss_scale=none"}, device="cpu")
    with pytest.raises(ua.UnsupportedError, match=r"amp\.mp_policy: .* schedule"):
        amp.backend.distributed.mp_policy()
    emulating = ua.Amp("torch", schedule={0: "mixed_bfloat16", 1: "mixed_bfloat16;emulate=true"}, device="cpu")
    with pytest.raises(ua.UnsupportedError, match=r"amp\.compile\(Sequential\)"):
        emulating.compile(wide())


def test_a_forecast_ends_before_a_switch():
    amp = ua.Amp("torch", schedule={0: "float32", 9: "mixed_bfloat16"}, device="cpu")
    model = wide()
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ua.PolicyError, match="at iteration 9, within the next 10 .*at most 9 steps"):
        amp.forecast(10)
    amp.forecast(9).stop()


def test_trainers_take_one_policy():
    from unifiedamp.integrations.session_source import SessionSource

    schedule = {0: "float32", 1: "mixed_bfloat16"}
    with pytest.raises(ua.UnsupportedError, match="a trainer takes one policy"):
        SessionSource("AmpPlugin", ua.Amp("torch", schedule=schedule), {})
    with pytest.raises(ua.UnsupportedError, match="a trainer takes one policy"):
        SessionSource("AmpPlugin", None, {"schedule": schedule})


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_your_own_recompute_under_the_policy_in_force(reentrant):
    """``torch.utils.checkpoint`` enters torch's autocast again; the overrides are the session's."""

    def trained(run):
        amp = session(None, schedule={0: "mixed_bfloat16", 1: "mixed_bfloat16;ops=linear:float32"})
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)
        )
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        x, y = batch()
        for _ in range(3):
            amp.backward(lambda: cross_entropy(model[3](run(model[1:3], model[0](x))), y), optimizer)
            amp.step(optimizer)
        return [param.detach() for param in model.parameters()]

    again = trained(lambda part, x: checkpoint(part, x, use_reentrant=reentrant))
    assert all(map(torch.equal, again, trained(lambda part, x: part(x))))
