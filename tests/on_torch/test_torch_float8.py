"""float8 on torch: what the hardware's product wants, tracing, and that layers are found and given back."""

import warnings
from contextlib import closing

import pytest
import torch
from loops import check_copies, session
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua
from unifiedamp_torch.compiling.compile import compile_call, ready_dynamo
from unifiedamp_torch.device.selection import float8_support
from unifiedamp_torch.precision import float8

EMULATE = {"torch": {"emulate": True}}


@pytest.fixture
def fresh_dynamo():
    ready_dynamo()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def emulated(policy="mixed_float8", **options):
    return session(policy, backend_options=EMULATE, **options)


def tensors(rows=40, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(rows, 64).bfloat16().requires_grad_()
    weight, bias = torch.randn(48, 64, requires_grad=True), torch.randn(48, requires_grad=True)
    return x, weight, bias, torch.randn(rows, 48).bfloat16()


def results(x, weight, bias, grad, emulate, fn=float8.linear):
    out = fn(x, weight, bias, emulate)
    return out.detach(), *torch.autograd.grad(out, [x, weight, bias], grad)


@pytest.fixture
def strict_product(monkeypatch):
    """``torch._scaled_mm`` that also asks on CPU for what it asks for on a GPU; counts its calls."""
    native, calls = torch._scaled_mm, []

    def product(a, b, *, scale_a, scale_b, bias, out_dtype, use_fast_accum):
        (m, k), (_, n) = a.shape, b.shape
        assert (a.stride(), b.stride()) == ((k, 1), (1, k)), "row-major times column-major"
        assert k % 16 == n % 16 == 0
        assert {a.dtype, b.dtype} <= {torch.float8_e4m3fn, torch.float8_e5m2}
        assert torch.float8_e4m3fn in (a.dtype, b.dtype), "no product of two e5m2 matrices"
        assert all(scale.dtype is torch.float32 and scale.shape == (1,) for scale in (scale_a, scale_b))
        assert bias is None or (bias.dtype, out_dtype) == (torch.bfloat16, torch.bfloat16)
        calls.append((m, k, n, a.dtype, out_dtype, use_fast_accum))
        settings = {"bias": bias, "out_dtype": out_dtype, "use_fast_accum": use_fast_accum}
        return native(a, b, scale_a=scale_a, scale_b=scale_b, **settings)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    return calls


@pytest.mark.parametrize("rows", [48, 40])
def test_the_native_product_is_called_as_the_hardware_wants_it(strict_product, rows):
    x, weight, bias, grad = tensors(rows)
    grad = grad.t().contiguous().t()
    for native, wanted in zip(results(x, weight, bias, grad, False), results(x, weight, bias, grad, True), strict=True):
        assert native.dtype == wanted.dtype
        torch.testing.assert_close(native, wanted, rtol=2**-7, atol=1e-4)
    forward, dx, dw = strict_product
    assert forward == (48, 64, 48, torch.float8_e4m3fn, torch.bfloat16, True)
    assert dx == (48, 48, 64, torch.float8_e5m2, torch.bfloat16, False)
    assert dw == (48, 48, 64, torch.float8_e5m2, torch.float32, False)


def test_strides_of_any_kind(strict_product):
    """Transposed inputs and weights, and the gradient of a sum, which has no strides at all."""
    x = torch.randn(64, 32, requires_grad=True)
    weight = torch.randn(64, 48, requires_grad=True)
    float8.linear(x.t(), weight.t(), None, False).sum().backward()
    wanted = float8.linear(x.t(), weight.t(), None, True).sum()
    torch.testing.assert_close(x.grad, torch.autograd.grad(wanted, x)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("frozen", [(), (0,), (1, 2)])
def test_gradients_that_nobody_wants_are_not_computed(strict_product, frozen):
    tensor = tensors(32)
    for index in frozen:
        tensor[index].requires_grad_(False)
    out = float8.linear(*tensor[:3], False)
    out.backward(tensor[3])
    assert [each.grad is not None for each in tensor[:3]] == [index not in frozen for index in range(3)]
    assert len(strict_product) == 1 + (0 not in frozen) + (1 not in frozen)


@pytest.mark.parametrize("emulate", [True, False])
def test_nothing_is_read_from_the_device(emulate):
    class Seen(TorchDispatchMode):
        names: set[str] = set()  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    with Seen() as seen:
        results(*tensors(), emulate)
    assert not {name for name in seen.names if "_local_scalar_dense" in name or "item" in name or "nonzero" in name}


@pytest.mark.parametrize("emulate", [True, False])
def test_one_graph_with_the_results_of_eager(fresh_dynamo, emulate):
    compiled = torch.compile(float8.linear, fullgraph=True)
    for rows in (40, 32):
        args = tensors(rows)
        for mine, eager in zip(results(*args, emulate, fn=compiled), results(*args, emulate), strict=True):
            torch.testing.assert_close(mine, eager, rtol=2**-6, atol=1e-2)
    bad = torch.full((16, 64), float("inf"))
    assert compiled(bad, *args[1:3], emulate).isnan().all()


def block():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))


def test_a_model_compiled_as_one_graph(fresh_dynamo):
    amp = emulated()
    model = amp.prepare(block())
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(4, 5, 32)
    for enabled in (True, False, True):
        with amp.autocast(enabled=enabled):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=2e-2 if enabled else 1e-5)
    with amp.autocast():
        low = compiled(x)
    with amp.autocast(enabled=False):
        assert (compiled(x) - low).abs().max() > 1e-3


def test_a_model_compiled_before_prepare(fresh_dynamo):
    model = block()
    model.compile(backend="eager")
    x = torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x).float()
    amp = emulated()
    model = amp.prepare(model)
    with amp.autocast():
        low = model(x)
        assert (low - before).abs().max() > 5e-3
        amp.close()
        torch.testing.assert_close(model(x).float(), before)


def test_checkpointed_layers_recompute_in_float8():
    amp = emulated()
    model = block()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.randn(16, 32)

    def gradients(run):
        amp.backward(lambda: run(x).square().mean(), optimizer)
        found = {name: grad.clone() for name, grad in amp.gradients(optimizer).items()}
        amp.discard_step(optimizer)
        return found

    plain = gradients(model)
    again = gradients(lambda x: checkpoint(model, x, use_reentrant=False))
    for name, grad in plain.items():
        assert torch.equal(again[name], grad)


def test_an_empty_batch_runs_as_it_always_did():
    amp = emulated()
    model = amp.prepare(block())
    with amp.autocast():
        assert model(torch.ones(0, 32)).shape == (0, 32)


def test_models_can_be_copied_and_saved():
    amp = emulated()
    model = amp.prepare(block())
    check_copies(amp, model, 2, torch.randn(16, 32))


class Own(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def test_layers_that_cannot_be_taken_are_named_with_the_reason():
    model = torch.nn.Module()
    model.attention = torch.nn.MultiheadAttention(32, 2)
    model.own = Own(32, 32)
    model.patched = torch.nn.Linear(32, 32)
    model.patched.forward = lambda x: x
    model.odd = torch.nn.Linear(30, 32)
    model.inner = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    model.good = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(32, 32))
    amp = emulated(ua.Policy(compute_dtype="float8", layer_overrides={"inner": "bfloat16"}))
    amp.prepare(model)
    plan = amp.explain()
    notes = {row.setting[7:]: row.note for row in plan if row.setting.startswith("float8.")}
    assert notes == {
        "attention.out_proj": "the layer that holds it uses its weight without calling it",
        "own": "Own overrides forward",
        "patched": "its forward was replaced",
        "odd": "in_features=30: not a multiple of 16",
        "inner.0": "layer_overrides: bfloat16",
        "inner.1": "layer_overrides: bfloat16",
        "good": "ParametrizedLinear overrides forward" if notes["good"] else "",
    }
    assert plan.row("float8").value.endswith("of 7 linear layers")


def test_a_model_without_such_layers_is_said():
    with pytest.warns(ua.errors.PolicyWarning, match=r"nothing of Linear in float8: out_features=4: not a multiple"):
        emulated().prepare(torch.nn.Linear(16, 4))
    with pytest.raises(ua.PolicyNotSupportedError, match=r"has no torch\.nn\.Linear"):
        emulated(strict=True).prepare(torch.nn.Conv2d(16, 16, 3))


def test_regions_of_other_policies():
    """Those that torch can tell apart run without float8; the others are refused."""
    amp = emulated()
    model = amp.prepare(torch.nn.Linear(32, 32))
    x = torch.randn(16, 32)
    with amp.autocast(policy="mixed_float16"):
        half = model(x)
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(half, torch.nn.functional.linear(x, model.weight, model.bias).float())
    with pytest.raises(ua.UnsupportedError, match="cannot leave float8 for bfloat16"):
        amp.autocast(policy="mixed_bfloat16")
    with pytest.raises(ua.UnsupportedError, match="a policy for the session"):
        session("mixed_bfloat16").autocast(policy="mixed_float8")


@pytest.mark.parametrize(
    ("capability", "runs"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((10, 0), True)]
)
def test_which_gpus_have_it(monkeypatch, capability, runs):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    answer = float8_support(torch.device("cuda"))
    assert bool(answer) == runs
    assert f"compute capability {capability[0]}.{capability[1]}" in answer.reason


def test_options():
    with pytest.raises(ua.ConfigError, match=r"torch\.emulate must be true or false, got 'yes'"):
        session("mixed_float8", backend_options={"torch": {"emulate": "yes"}})
    with pytest.warns(ua.errors.PolicyWarning, match="emulate has no effect under policy 'mixed_bfloat16'"):
        session("mixed_bfloat16", backend_options=EMULATE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ua.errors.PolicyWarning)
        session(None, schedule={0: "mixed_bfloat16", 9: "mixed_float8"}, backend_options=EMULATE)
    with pytest.raises(ua.PolicyNotSupportedError, match=r"not cpu.*'mixed_bfloat16'.*'mixed_float8;emulate=true'"):
        session("mixed_float8")
    assert session("mixed_float8", backend_options=EMULATE).capabilities.policies["mixed_float8"]


@pytest.mark.parametrize("parts", [3, 1])
def test_each_part_of_a_model_is_compiled(fresh_dynamo, parts):
    """Dynamo counts the programs of all parts together: modules of a class share their code."""
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16)) for _ in range(3)])
    with closing(emulated()) as amp:
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for part in model:  # as fully_shard does; what comes after a graph break is compiled by the code of forward
            part.register_forward_pre_hook(torch.compiler.disable(lambda *_: None))
        x, refused = torch.randn(16, 16), 0
        config = {"recompile_limit": 1, "fail_on_recompile_limit_hit": True}
        with torch._dynamo.config.patch(config), amp.autocast():
            for part in model:
                try:
                    found = compile_call(part, {}, parts)(x)
                except FailOnRecompileLimitHit:
                    refused += 1
                else:
                    torch.testing.assert_close(found, part(x), rtol=2**-6, atol=1e-2)
    if parts == 3:
        assert refused == 0
    elif torch.__version__ >= "2.13":  # a string that compares as a version; 2.11 counts by module
        assert refused == 2
