"""Spellings that scripts use beside the plain ones: devices named, Apex's private scale, its lists and LARC."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import unifiedamp as ua  # noqa: E402
from unifiedamp.checkpoint.session_state import to_grad_scaler_state  # noqa: E402
from unifiedamp.compat import apex as amp  # noqa: E402
from unifiedamp.compat.torch_cuda_amp import GradScaler, autocast, custom_bwd, custom_fwd  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")


@pytest.mark.parametrize(
    ("args", "options", "scale"),
    [
        (("cuda",), {}, 2.0**16),
        (("cpu", 1024.0), {"enabled": True}, 1024.0),
        ((1024.0, 2.0), {"growth_interval": 7}, 1024.0),
        ((), {"device": "cuda", "init_scale": 8.0}, 8.0),
        ((torch.device("cpu"),), {}, 2.0**16),
        (("cuda",), {"enabled": False}, 1.0),
    ],
)
def test_scalers_of_both_signatures(args, options, scale):
    scaler = GradScaler(*args, **options)
    assert scaler.get_scale() == scale
    assert scaler.get_growth_interval() == options.get("growth_interval", 2000)


@pytest.mark.parametrize(
    ("args", "options", "dtype"),
    [
        ((), {}, torch.float16),
        ((True, torch.bfloat16), {}, torch.bfloat16),
        (("cuda",), {}, torch.float16),
        (("cpu",), {}, torch.bfloat16),
        ((), {"device_type": "cuda", "dtype": torch.bfloat16}, torch.bfloat16),
        (("cuda", torch.bfloat16, True), {"cache_enabled": False}, torch.bfloat16),
        (("cuda",), {"dtype": torch.float16, "enabled": False}, torch.float32),
        ((False,), {}, torch.float32),
    ],
)
def test_regions_of_both_signatures(args, options, dtype):
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with autocast(*args, **options):
        assert layer(x).dtype is dtype


@pytest.mark.parametrize("call", [lambda: autocast("cuda", device=1), lambda: GradScaler(1.0, init_scale=2.0),
                                  lambda: autocast(True, torch.float16, True, 1)])  # fmt: skip
def test_arguments_that_there_are_not(call):
    with pytest.raises(TypeError, match="takes"):
        call()


def test_a_device_that_is_neither():
    with pytest.raises(ua.ConfigError, match="mps"):
        autocast("mps")


def test_custom_functions_take_a_device_type():
    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(1, requires_grad=True)
    Double.apply(x).backward()
    assert x.grad.item() == 2.0


def model_and_optimizer(lr=0.1):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=lr, weight_decay=0.1)


def test_apex_scale_is_set_by_its_private_name():
    model, optimizer = amp.initialize(*model_and_optimizer(), opt_level="O1", verbosity=0)
    scaler = amp._amp_state.loss_scalers[0]
    scaler._loss_scale = 128.0
    assert (scaler.loss_scale(), scaler._loss_scale, scaler._unskipped) == (128.0, 128.0, 0)
    with amp.scale_loss(model(torch.ones(1, 3)).sum(), optimizer) as scaled:
        assert scaled.item() == pytest.approx(128.0 * model(torch.ones(1, 3)).sum().item(), rel=1e-2)
        scaled.backward()
    assert scaler._unskipped == 1


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("clip", [True, False])
def test_larc_around_an_optimizer(level, clip):
    model, optimizer = model_and_optimizer()
    before = copy.deepcopy(model)
    larc = amp.LARC(optimizer, trust_coefficient=0.01, clip=clip)
    model, returned = amp.initialize(model, larc, opt_level=level, loss_scale=64.0, verbosity=0)
    assert returned is larc
    with amp.scale_loss(model(torch.ones(1, 3)).sum(), larc) as scaled:
        scaled.backward()
    larc.step()
    for old, new in zip(before.parameters(), amp.master_params(larc), strict=True):
        old, new = old.detach(), new.detach()
        grad, size = torch.ones_like(old), old.norm()
        local = 0.01 * size / (grad.norm() + 0.1 * size + 1e-8)
        rate = min(float(local) / 0.1, 1.0) if clip else float(local)
        assert torch.allclose(new, old - 0.1 * rate * (grad + 0.1 * old), atol=2e-4)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


def test_larc_skips_an_overflow():
    model, optimizer = model_and_optimizer()
    larc = amp.LARC(optimizer)
    model, larc = amp.initialize(model, larc, opt_level="O1", verbosity=0)
    before = copy.deepcopy(model.state_dict())
    with amp.scale_loss(model(torch.ones(1, 3)).sum() * float("inf"), larc) as scaled:
        scaled.backward()
    larc.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_functions_added_to_apex_lists_are_cast(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "silu", torch.nn.functional.silu)
    monkeypatch.setattr(amp.lists.functional_overrides, "FP16_FUNCS",
                        [*amp.lists.functional_overrides.FP16_FUNCS, "silu"])  # fmt: skip
    amp.initialize(*model_and_optimizer(), opt_level="O1", verbosity=0)
    assert torch.nn.functional.silu(torch.ones(2)).dtype is torch.float16


def test_functions_removed_from_apex_lists_are_refused(monkeypatch):
    kept = [name for name in amp.lists.torch_overrides.FP32_FUNCS if name != "exp"]
    monkeypatch.setattr(amp.lists.torch_overrides, "FP32_FUNCS", kept)
    with pytest.raises(ua.ConfigError, match="'exp' was removed"):
        amp.initialize(*model_and_optimizer(), opt_level="O1", verbosity=0)


@pytest.mark.parametrize("scale", ["dynamic", 128.0, ua.DynamicLossScale(initial_scale=8.0, growth_interval=5)])
def test_a_sessions_state_loads_into_torchs_scaler(scale):
    model, optimizer = model_and_optimizer()
    session = ua.Amp("torch", "mixed_bfloat16", loss_scale=scale, device="cpu")
    model, optimizer = session.prepare(model, optimizer)
    for _ in range(3):
        with session.autocast():
            loss = model(torch.ones(1, 3)).sum()
        with session.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        session.step(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(to_grad_scaler_state(session.state_dict()))
    scaler.scale(torch.ones(()))
    assert scaler.get_scale() == session.loss_scale
    assert scaler.state_dict()["_growth_tracker"] == session.state_dict()["state"]["good_steps"]
    if not isinstance(scale, str | float):
        assert scaler.get_growth_interval() == 5


def test_a_state_without_a_scale_is_torchs_disabled_one():
    state = to_grad_scaler_state(ua.Amp("torch", "float32", device="cpu").state_dict())
    assert state == torch.amp.GradScaler("cpu", enabled=False).state_dict() == {}


def test_what_is_no_state():
    with pytest.raises(ua.CheckpointError):
        to_grad_scaler_state({"x": 1})
