"""Several Accelerators and sessions on one model, as in trainings that follow each other."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import probes
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs, GradScalerKwargs

import unifiedamp as ua
from unifiedamp.integrations.accelerate import AmpAccelerator, attach


class Looks(probes.Probe):
    """Notes in which dtype products are computed."""

    def forward(self, x):
        self.dtype = torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype
        return super().forward(x)


def trained(accelerator, model):
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.125))
    accelerator.backward(model(torch.ones(1)))
    optimizer.step()
    optimizer.zero_grad()
    return model


BEFORE = {
    "accelerate": lambda: Accelerator(cpu=True, mixed_precision="bf16"),
    "a session": lambda: AmpAccelerator(probes.session("mixed_bfloat16")),
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_model_of_another_accelerator_trains_under_the_session(before):
    model = trained(BEFORE[before](), Looks())
    assert model.dtype is torch.bfloat16
    AcceleratorState._reset_state(True)
    accelerator = AmpAccelerator(probes.session("float32", loss_scale=4.0))
    model = trained(accelerator, model)
    assert model.dtype is torch.float32
    assert model.weight.item() == 1 - 2 * 0.125
    assert accelerator.prepare(model) is model


def test_attaching_after_a_model_is_prepared_is_refused():
    accelerator = Accelerator(cpu=True)
    trained(accelerator, Looks())
    with pytest.raises(ua.ConfigError, match=r"has prepared a model .* call attach before accelerator\.prepare"):
        attach(accelerator, "mixed_float16")


def test_a_checkpoint_of_an_accelerator_without_a_scaler_is_loaded(tmp_path):
    native = Accelerator(cpu=True)
    trained(native, Looks())
    native.save_state(tmp_path)
    AcceleratorState._reset_state(True)
    accelerator = AmpAccelerator(probes.session("float32", loss_scale=4.0))
    model = accelerator.prepare(Looks())
    with pytest.warns(ua.StateWarning, match="holds no loss scale: the run goes on from 4"):
        accelerator.load_state(tmp_path)
    assert model.weight.item() == 0.875
    assert trained(accelerator, model).weight.item() == 0.75


@pytest.mark.parametrize("handler", [GradScalerKwargs(init_scale=4.0), AutocastKwargs(enabled=False)])
def test_settings_of_native_precision_are_refused(handler):
    with pytest.raises(ua.ConfigError, match=f"{type(handler).__name__} in kwargs_handlers has no effect"):
        AmpAccelerator("float32", cpu=True, kwargs_handlers=[handler])


def test_uneven_inputs_under_a_loss_scale_are_refused(monkeypatch):
    monkeypatch.setattr(AmpAccelerator, "num_processes", 2)
    accelerator = AmpAccelerator(probes.session("float32", loss_scale=4.0))
    with pytest.raises(ua.UnsupportedError, match="join_uneven_inputs: processes skip a step together"):
        accelerator.join_uneven_inputs([accelerator.prepare(Looks())])
