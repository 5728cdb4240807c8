"""Custom operations, arrays, capabilities and the plan."""

import numpy as np
import pytest
import torch
from loops import mlp, session

import unifiedamp as ua
from unifiedamp.backend import Processor
from unifiedamp_torch import explain
from unifiedamp_torch.device import arrays, cpu_features, placement


def test_a_function_class_runs_in_float32_without_autocast():
    seen = []

    @ua.amp_function(cast_inputs="float32")
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            seen.append((grad.dtype, torch.is_autocast_enabled("cpu")))
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.full((2,), 3.0, dtype=torch.bfloat16, requires_grad=True)
    with session("mixed_bfloat16").autocast():
        out = Square.apply(x)
        assert out.dtype == torch.float32
        out.sum().backward()
    assert seen == [(torch.float32, False)] * 2
    assert x.grad.tolist() == [6.0, 6.0]
    assert Square.apply(x).dtype == torch.bfloat16


def test_a_plain_function_is_cast_inside_autocast_only():
    @ua.amp_function(cast_inputs="float32")
    def double(x, *, y):
        return x @ y

    low = torch.ones(2, 2, dtype=torch.bfloat16)
    with session("mixed_bfloat16").autocast():
        assert double(low, y=low).dtype == torch.float32
    assert double(low, y=low).dtype == torch.bfloat16


@pytest.mark.parametrize("nest", [lambda x: {"x": x}, lambda x: [("name", x)], lambda x: {"deep": [{"x": x}]}])
def test_a_function_of_nested_tensors_finds_its_backend(nest):
    low, seen = torch.ones(2, dtype=torch.bfloat16), []

    @ua.amp_function(cast_inputs="float32")
    def function(parts):
        seen.extend(each.dtype for each in torch.utils._pytree.tree_leaves(parts) if isinstance(each, torch.Tensor))

    with session("mixed_bfloat16").autocast():
        function(nest(low))
    assert seen == [torch.float32]


def test_classes_that_custom_fwd_does_not_know_are_refused():
    class WithSetup(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    with pytest.raises(ua.UnsupportedError, match="setup_context"):
        ua.amp_function(WithSetup, cast_inputs="float32")
    with pytest.raises(ua.UnsupportedError, match=r"no torch\.autograd\.Function|not a torch\.autograd\.Function"):
        ua.amp_function(torch.nn.ReLU, cast_inputs="float32")


def test_arrays_share_memory_where_they_can():
    amp = session()
    array = np.zeros((2, 3), np.float32)
    native = amp.to_native(array)
    array[0, 0] = 5
    assert native[0, 0].item() == 5
    assert amp.to_native(native) is native
    back = amp.to_numpy(native)
    native[1, 1] = 7
    assert back[1, 1] == 7
    low = torch.full((2,), 1.5, dtype=torch.bfloat16, requires_grad=True)
    assert amp.to_numpy(low).dtype == np.float32


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6)[::-1],
        np.arange(4, dtype=">f4"),
        np.broadcast_to(np.float32(2), (3,)),
        np.array(3.0),
        np.arange(3) > 1,
    ],
)
def test_awkward_arrays(array):
    amp = session()
    np.testing.assert_array_equal(amp.to_numpy(amp.to_native(array)), array)


def has_flags(monkeypatch, *flags):
    monkeypatch.setattr(cpu_features, "this_processor", lambda: Processor("a CPU", "?", "?", frozenset(flags)))


def test_the_cpu_is_judged_by_its_instructions(monkeypatch):
    has_flags(monkeypatch, "avx512f", "avx512_bf16")
    assert ua.Amp("torch", device="cpu").policy.name == "mixed_bfloat16"
    session("mixed_bfloat16")
    with pytest.warns(ua.errors.PolicyWarning, match="runs but cannot help on cpu: this CPU has no AVX512-FP16"):
        session("mixed_float16")
    has_flags(monkeypatch, "avx2")
    assert ua.Amp("torch", device="cpu").policy.name == "float32"
    with pytest.raises(ua.PolicyNotSupportedError, match="cannot help"):
        session("mixed_bfloat16", strict=True)


def test_policies_that_torch_has_no_autocast_for():
    with pytest.raises(ua.PolicyNotSupportedError, match="nearest that runs: 'float32' or 'bfloat16'"):
        session("p=bf16,c=f32,o=f32")


@pytest.mark.parametrize(("name", "text"), [("toaster", "not one that torch knows"), ("meta", "no autocast")])
def test_unknown_devices(name, text):
    with pytest.raises(ua.ConfigError, match=text):
        ua.Amp("torch", "float32", device=name)


def test_unknown_options_are_named():
    with pytest.raises(ua.ConfigError, match="did you mean 'cache_enabled'"):
        session(backend_options={"torch": {"cache_enable": True}})
    with pytest.raises(ua.ConfigError, match="must be true or false"):
        session(backend_options={"torch": {"cache_enabled": 1}})


def test_the_plan_names_the_native_calls():
    policy = ua.Policy(
        compute_dtype="bfloat16", op_overrides={"softmax": "compute"}, layer_overrides={"3": "float32"}
    )  # fmt: skip
    amp = session(policy, loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    model = mlp()
    amp.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
    plan = amp.explain()
    assert plan.row("compute_dtype").native == "torch.autocast('cpu', dtype=torch.bfloat16, cache_enabled=True)"
    assert plan.row("loss_scale.bounds").effect == "emulated"
    assert "AutocastCPU: aten::softmax.int" in plan.row("op_overrides.softmax").native
    assert "enabled=False" in plan.row("layer_overrides.3").native
    assert "AdamW" in str(plan)
    assert all(support.reason for support in amp.capabilities.features.values())
    amp.close()


@pytest.mark.parametrize(("policy", "rows"), [("mixed_bfloat16", 1), ("float32", 0)])
def test_the_plan_lists_layers_in_float64(policy, rows):
    amp, model = session(policy), mlp()
    model[3].double()
    amp.prepare(model)
    found = [row for row in amp.explain() if row.setting == "float64 parameters"]
    assert [row.note for row in found] == ["2 of 4 ('3.weight', '3.bias'); float32 ones follow the policy"] * rows


def test_scope_sets_the_default_device_and_puts_it_back():
    amp = session()
    with torch.device("meta"):
        with pytest.raises(KeyError), amp.scope():
            assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
            raise KeyError
        assert torch.empty(1).device.type == "meta"


def test_scope_can_leave_creation_to_torch():
    amp = session(backend_options={"torch": {"scope_device": False}})
    with torch.device("meta"), amp.scope():
        assert torch.nn.Linear(2, 2).weight.device.type == "meta"
    assert amp.explain().row("device").native == "model.to('cpu') in prepare()"
    meta = torch.device("meta")
    with placement.creation_scope(meta):
        assert torch.empty(1).device == meta
    with placement.creation_scope(meta, on_device=False):
        assert torch.empty(1).device.type == "cpu"


def test_the_plan_says_whose_random_numbers_a_model_gets():
    row = explain.device_row(torch.device("cuda:0"), scope_device=True)
    assert "this device's random generator" in row.note
    assert "'scope_device': False" in row.note
    assert not session().explain().row("device").note


@pytest.mark.parametrize("name", [each for each in ("mps", "xpu") if not getattr(torch, each).is_available()])
def test_a_device_that_is_not_there(name):
    with pytest.raises(ua.ConfigError, match=f"device '{name}' is not there: .*use device='cpu'"):
        ua.Amp("torch", "float32", device=name)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_prepared_model_cannot_be_scripted_and_says_so():
    amp, model = session("mixed_bfloat16"), mlp()
    amp.prepare(model)
    with pytest.raises(ua.UnsupportedError, match=r"torch\.jit\.script .* after amp\.close\(\)"):
        torch.jit.script(model)
    hook = next(iter(model._forward_hooks.values()))
    assert getattr(hook, "__name__", "none") == "none"
    amp.close()
    assert torch.jit.script(model)(torch.ones(1, 8)).shape == (1, 4)


def test_a_scheduler_that_wants_a_metric_is_refused_before_the_step():
    amp, model = session(loss_scale=4.0), mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    amp.backward(lambda: model(torch.ones(1, 8)).sum(), optimizer)
    before = model[0].weight.detach().clone()
    with pytest.raises(ua.WrongObjectError, match="ReduceLROnPlateau.step needs metrics"):
        amp.step(optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    assert torch.equal(model[0].weight, before)
    assert amp.step(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)).applied


def test_a_scheduler_of_an_optimizer_that_was_replaced_is_refused():
    amp, model = session(loss_scale=4.0), mlp()
    earlier, now = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    model, now = amp.prepare(model, now)
    amp.backward(lambda: model(torch.ones(1, 8)).sum(), now)
    with pytest.raises(ua.WrongObjectError, match="this StepLR belongs to an optimizer that was not prepared, a SGD"):
        amp.step(now, torch.optim.lr_scheduler.StepLR(earlier, 1))
    assert amp.step(now, torch.optim.lr_scheduler.StepLR(now, 1)).applied


def test_tensors_come_to_the_sessions_device():
    x = torch.ones(2)
    assert session().to_native(x) is x
    assert arrays.to_native(x, torch.device("meta")).device.type == "meta"


def test_arrays_that_numpy_has_no_plain_dtype_for():
    amp, low = session(), pytest.importorskip("ml_dtypes").bfloat16
    read = amp.to_native(np.array([1 / 3, 2.0]).astype(low))
    assert read.dtype is torch.bfloat16
    assert read.tolist() == torch.tensor([1 / 3, 2.0], dtype=torch.bfloat16).tolist()
    assert amp.to_native(np.array([1 / 3], np.longdouble)).dtype is torch.float32
    assert amp.to_native(np.array([1.0], ">f8")).tolist() == [1.0]
    assert amp.to_native(np.array([1j], np.complex128)).dtype is torch.complex128


def test_arrays_that_torch_has_no_dtype_for():
    for array in (np.array(["a"]), np.array([object()])):
        with pytest.raises(ua.WrongObjectError, match="amp.to_native: .*numpy's dtype"):
            session().to_native(array)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16;loss_scale=dynamic(initial_scale=1048576.0,growth_interval=2)",
        "mixed_float8;recipe=delayed;emulate=true",
        "bfloat16;update=kahan",
        "mixed_bfloat16;state_dtype=float8",
    ],
)
def test_torchs_default_dtype_changes_nothing(policy, dtype):
    def trained(default):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 16)
        amp = session(policy)
        x = torch.rand(4, 16)
        torch.set_default_dtype(default)
        try:
            model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters(), 0.01))
            ema = amp.ema(model, 0.5)
            for _ in range(3):
                amp.backward(lambda: model(x).float().square().mean(), optimizer)
                amp.clip_grad_norm(optimizer, 0.5)
                amp.step(optimizer)
        finally:
            torch.set_default_dtype(torch.float32)
        return [*amp.master_weights(model).values(), *ema.weights().values(), amp.loss_scale]

    for one, other in zip(trained(dtype), trained(torch.float32), strict=True):
        assert np.array_equal(one, other)
