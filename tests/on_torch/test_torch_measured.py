"""A measured run of captured and compiled steps: replays run no Python, and their losses are noted all the same."""

import json

import pytest
import torch
from loops import batch, mlp, pretend_reads_sync
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp.measured import VARIABLE
from unifiedamp.measured.request import LOG, Overrides, RunRequest
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import CapturedStep
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates

STEPS = 12


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def trained(step_of, policy="float32"):
    """Train until the run ends; return the losses that the step returned."""
    amp = ua.Amp("torch", policy, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=3))
    torch.manual_seed(0)
    model = mlp().to(amp.backend.device.native)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05, fused=True))

    def step(x, y):
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
        return loss

    compiled, own = step_of(amp, step), []
    try:
        for seed in range(100):
            own.append(compiled(*(each.to(amp.backend.device.native) for each in batch(seed))))
    except SystemExit:
        return [float(loss.detach()) for loss in own]
    raise AssertionError("the run did not end")


def captured(amp, step):
    """The step captured by a stand-in, or by the real thing where there is a GPU."""
    if torch.cuda.is_available():
        return amp.compile(step)
    backend, device = amp.backend, amp.backend.device.native
    context = CaptureContext(
        TapeCapturer(), DeviceLearningRates(device), backend.compiler.steps, backend.spec, device.type, backend.recorder
    )
    traced = CapturedStep(amp._loop.measure.traced(step), context, amp._loop.order, backend.compiler.must_run)
    return amp._compiled.follow(traced)


def notes(folder):
    found = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [note for note in found if note["kind"] != "alive"]  # a sign of life depends on the time


@pytest.mark.parametrize("form", ["captured", "eager"])
def test_losses_of_replays_are_noted(run_folder, monkeypatch, form):
    if not torch.cuda.is_available() and form == "captured":
        pretend_reads_sync(monkeypatch)
    RunRequest("steps", (4, 8, STEPS)).write(run_folder)
    own = trained(captured if form == "captured" else lambda amp, step: step)
    found = notes(run_folder)
    assert [note["kind"] for note in found] == ["session", "turn", "turn", "turn", "end"]
    losses = [loss for note in found[1:-1] for loss in note["losses"]]
    assert len(losses) == STEPS
    assert losses[: STEPS - 1] == pytest.approx(own[: STEPS - 1], rel=1e-6)
    assert [note["state"]["applied"] for note in found[1:-1]] == [4, 8, STEPS]
    assert found[-2]["state"]["scale"] == 4.0 * 2**4


def test_arguments_are_overridden(run_folder):
    """The command's settings win over what the code says, and what it said is noted."""
    wanted = Overrides(policy="mixed_bfloat16", backend_options={"cache_enabled": False}, compile="off")
    RunRequest("steps", (2,), wanted).write(run_folder)
    amp = ua.Amp("torch", "float32", compile="max", loss_scale=8.0)
    assert str(amp.policy) == "mixed_bfloat16"
    assert amp.compile_mode == "off"
    assert amp.backend.spec.options == {"cache_enabled": False}
    assert amp.compile(len, mode="max") is len


def test_a_policy_of_the_commands_takes_the_place_of_a_schedule(run_folder):
    RunRequest("steps", (2,), Overrides(policy="mixed_bfloat16")).write(run_folder)
    amp = ua.Amp("torch", schedule={0: "float32", "50%": "mixed_bfloat16"}, total_steps=10)
    assert (str(amp.policy), amp.schedule) == ("mixed_bfloat16", None)


@pytest.mark.parametrize("scale", [None, 8.0])
def test_the_scripts_loss_scale_stays_where_a_policy_scales(run_folder, scale):
    RunRequest("steps", (2,), Overrides(policy="mixed_float16")).write(run_folder)
    amp = ua.Amp("torch", "float32", loss_scale=scale)
    assert amp.loss_scale == (8.0 if scale else 65536.0)


def test_without_the_variable_nothing_is_imported(tmp_path):
    import subprocess
    import sys

    code = "import sys, unifiedamp as ua; ua.Amp('torch', 'float32'); print('unifiedamp.measured.run' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
