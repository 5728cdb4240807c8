"""torch.cuda.amp's spellings: the write-ups' own lines train, overflow skips, the scale follows the reference."""

import copy
from dataclasses import replace

import pytest
import torch
from old_code import falls, listing

import unifiedamp as ua
from unifiedamp.compat import torch_cuda_amp as retired
from unifiedamp.compat.torch_cuda_amp import GradScaler, autocast, custom_bwd, custom_fwd
from unifiedamp_torch.device import kinds

MOVED = ("from torch.cuda.amp import", "from unifiedamp.compat.torch_cuda_amp import")
INF = float("inf")


@pytest.mark.parametrize("name", ["torch_cuda_amp", "torch_cuda_amp_clip"])
def test_the_listings_lines_train(name):
    assert falls(listing(name, MOVED)["train"](24))


def test_the_listing_loses_what_float32_loses():
    mixed = listing("torch_cuda_amp", MOVED)["train"](8)
    plain = listing("torch_cuda_amp", MOVED, ("autocast():", "autocast(enabled=False):"))["train"](8)
    # float16 rounds to 11 bits; eight steps carry a few roundings of losses of about 1.
    assert mixed == pytest.approx(plain, rel=0.05)
    assert mixed != plain


def test_a_compiled_model_trains_alike():
    compiled = ("        with autocast():", "        with autocast():\n            model.compile(backend='eager')")
    eager = listing("torch_cuda_amp", MOVED)["train"](3)
    assert listing("torch_cuda_amp", MOVED, compiled)["train"](3) == pytest.approx(eager, rel=1e-3)


def test_regions():
    x, layer = torch.ones(2, 4), torch.nn.Linear(4, 4)

    @autocast(dtype=torch.bfloat16)
    def decorated(x):
        return layer(x)

    assert decorated(x).dtype == torch.bfloat16
    with autocast() as region:
        assert isinstance(region, torch.autocast)
        assert layer(x).dtype == torch.float16
        with autocast(enabled=False):
            assert layer(x).dtype == torch.float32
        assert layer(x).dtype == torch.float16
    with autocast(False), autocast(dtype=torch.float32, cache_enabled=False):
        assert layer(x).dtype == torch.float32
    with pytest.raises(ua.ConfigError, match="float64"):
        autocast(dtype=torch.float64)


def looped(scaler, gradients, clip=None, fused=False):
    """Feed a weight the gradients; return its value and the scale after each step."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
    seen = []
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_([weight], clip)
        scaler.step(optimizer)
        scaler.update()
        seen.append((weight.item(), scaler.get_scale()))
    return seen


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_overflow_skips_and_the_scale_moves_as_the_reference(clip, fused):
    gradients = [1.0, 0.25, INF, 1.0, float("nan"), -INF, 1.0, 1.0, 1.0]
    settings = ua.DynamicLossScale(initial_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    state, weight, wanted = settings.initial_state(), 1.0, []
    for gradient in gradients:
        finite = abs(gradient) < INF
        if finite:
            weight -= 0.1 * min(gradient, clip or INF)
        state = settings.next_state(state, not finite)
        wanted.append((weight, state.scale))
    found = looped(GradScaler(8.0, 4.0, 0.25, 2), gradients, clip, fused)
    assert [pair[1] for pair in found] == [pair[1] for pair in wanted]
    assert [pair[0] for pair in found] == pytest.approx([pair[0] for pair in wanted], rel=1e-6)


def test_a_fused_optimizer_skips_without_waiting_for_the_device(monkeypatch):
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], reads_without_sync=False))
    reads, item = [], torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: reads.append(tensor) or item(tensor))
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer, scaler, read = torch.optim.AdamW([weight], lr=0.1, fused=True), GradScaler(8.0), []
    for gradient in (1.0, INF, 1.0, 1.0):
        reads.clear()
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        read.append(len(reads))
    assert read[1:] == [0, 0, 0]
    assert optimizer.state[weight]["step"] == 3
    assert scaler.get_scale() == 4.0


def test_a_hopeless_run_stops():
    with pytest.raises(ua.LossScaleExhausted):
        looped(GradScaler(), [INF] * 60)


def test_half_precision_losses_are_scaled_in_float32():
    scaled = GradScaler(2.0**16).scale([torch.ones(3, dtype=torch.float16), (torch.ones(()),)])
    assert scaled[0].dtype == torch.float32
    assert scaled[0].tolist() == [65536.0] * 3
    assert scaled[1][0].item() == 65536.0


def test_disabled_it_lets_everything_through():
    scaler = GradScaler(enabled=False)
    assert not scaler.is_enabled()
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}
    assert looped(scaler, [1.0, 1.0])[-1] == (pytest.approx(0.8), 1.0)
    loss = torch.ones(2)
    assert scaler.scale(loss) is loss


def test_state_goes_to_torchs_own_scaler_and_back():
    scaler = GradScaler(8.0, growth_interval=3)
    looped(scaler, [1.0, INF, 1.0, 1.0])
    state = scaler.state_dict()
    native = torch.amp.GradScaler("cpu", init_scale=2.0)
    native.load_state_dict(copy.deepcopy(state))
    assert native.state_dict() == state
    other = GradScaler()
    other.load_state_dict(native.state_dict())
    assert other.state_dict() == state
    assert (other.get_scale(), other.get_growth_interval()) == (4.0, 3)
    other.set_growth_factor(8.0)
    assert looped(other, [1.0])[-1][1] == 32.0
    assert isinstance(other, torch.amp.GradScaler)
    with pytest.raises(RuntimeError, match="disabled"):
        GradScaler().load_state_dict({})


def test_update_may_set_the_scale():
    scaler = GradScaler()
    scaler.update(32.0)
    assert scaler.get_scale() == 32.0


def test_calls_out_of_order_are_refused():
    scaler, weight = GradScaler(), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(RuntimeError, match="no parameter of this SGD has a gradient"):
        scaler.step(optimizer)
    scaler.update()
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)


def test_settings_out_of_range_are_named():
    with pytest.raises(ua.ConfigError, match="growth_factor"):
        GradScaler(growth_factor=0.5)


def test_custom_operations_run_in_the_dtype_they_ask_for():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
            return x * 2

        @staticmethod
        @custom_bwd
        def backward(ctx, grad):
            seen.append((grad.dtype, torch.is_autocast_enabled("cpu")))
            return grad * 2

    class Plain(torch.autograd.Function):
        @staticmethod
        @custom_fwd
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
            return x

        @staticmethod
        @custom_bwd
        def backward(ctx, grad):
            seen.append((grad.dtype, torch.is_autocast_enabled("cpu")))
            return grad

    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    with autocast():
        y = Double.apply(Plain.apply(x))
    y.sum().backward()
    assert seen == [(torch.float16, True), (torch.float32, False), (torch.float32, False), (torch.float16, True)]


def test_the_module_offers_what_torch_cuda_amp_did():
    assert set(retired.__all__) <= set(torch.cuda.amp.__all__)
