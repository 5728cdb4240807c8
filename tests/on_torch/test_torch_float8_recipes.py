"""float8 recipes on torch: products and gradients against an oracle in numpy's float64, per product and recipe."""

import numpy as np
import pytest
import torch
from loops import session

import unifiedamp as ua
from unifiedamp.conformance import float8 as kit
from unifiedamp_torch.precision import float8_casts as casts
from unifiedamp_torch.precision import float8_products
from unifiedamp_torch.precision.float8_casts import E4M3, cast

ROWS, INPUTS, OUTPUTS = 40, 256, 128
FINE = ["rowwise", "rowwise_gw_hp", "block128"]


def emulated(settings, **options):
    return session(f"mixed_float8;{settings};emulate=true", **options)


def bfloat16(*shape, seed, spread=0.0):
    """Numbers that bfloat16 holds, of magnitudes that differ from row to row and column to column."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-6, 7, shape[0]))[:, None] * np.exp2(rng.integers(-6, 7, shape[1]))
    return kit.BFLOAT16.round(rng.normal(size=shape) * scale**spread)


def scaled(values, high, wide):
    """What is left of a matrix whose blocks of ``high`` x ``wide`` values share a power of two."""
    m, k = values.shape
    high, wide = high or m, wide or k
    padded = np.pad(values, ((0, -m % high), (0, -k % wide)))
    blocks = padded.reshape(len(padded) // high, high, -1, wide)
    amax = np.abs(blocks).max((1, 3), keepdims=True)
    scale = np.exp2(np.floor(np.log2(448.0 / np.where(amax > 0, amax, 1.0))))
    return (kit.E4M3.round(blocks * scale) / scale).reshape(padded.shape)[:m, :k]


def operand(name, values, of_weight=False):
    """What is left of an operand of shape (m, k) whose product sums over k."""
    if name == "block128":
        return scaled(values, 128 if of_weight else 1, 128)
    return scaled(values, 1, None)


def expected(recipe, low, x, weight, bias, grad):
    """The layer's output and its gradients of x, weight and bias; ``low``: products that run in bfloat16."""
    take = lambda product, each, **kind: each if product in low else operand(recipe, each, **kind)  # noqa: E731
    low_weight = kit.BFLOAT16.round(weight)
    kept = {product: low_weight if product in low else weight for product in ("fprop", "dgrad")}
    out = take("fprop", x) @ take("fprop", kept["fprop"], of_weight=True).T
    dx = take("dgrad", grad) @ take("dgrad", kept["dgrad"].T, of_weight=True).T
    dw = take("wgrad", grad.T) @ take("wgrad", x.T).T
    round_ = kit.BFLOAT16.round
    return round_(round_(out) + bias), round_(dx), round_(dw), grad.sum(0)


class Layer:
    """A linear layer under a session; its loss is the sum of its output times given gradients."""

    def __init__(self, amp, weight, bias, form="eager"):
        model = torch.nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(weight))
            model.bias.copy_(torch.from_numpy(bias))
        self.amp = amp
        self.model, self.optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
        self._step = self._train if form == "eager" else amp.compile(self._train)

    def _train(self, x, grad):
        with self.amp.autocast():
            out = self.model(x)
            loss = (out * grad).sum()
        with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.kept = {name: each.clone() for name, each in self.amp.gradients(self.optimizer).items()}
        self.amp.step(self.optimizer)
        return out.detach()

    def run(self, x, grad):
        x = torch.from_numpy(x).float().requires_grad_()
        out = self._step(x, torch.from_numpy(grad).float())
        found = (out, x.grad, self.kept["weight"], self.kept["bias"])
        return [each.double().numpy() for each in found]


def distance(found, wanted):
    return np.sqrt(np.square(found - wanted).mean() / np.square(wanted).mean())


@pytest.fixture(scope="module")
def arrays():
    x, weight = bfloat16(ROWS, INPUTS, seed=0, spread=1), bfloat16(OUTPUTS, INPUTS, seed=1, spread=0.5)
    return x, weight, bfloat16(1, OUTPUTS, seed=2)[0], bfloat16(ROWS, OUTPUTS, seed=3, spread=1) * 2.0**-9


PRODUCTS = [(recipe, low) for recipe in FINE for low in [(), ("fprop",), ("dgrad",), ("wgrad",)]]


@pytest.mark.parametrize(("recipe", "low"), PRODUCTS)
def test_products_are_those_of_the_oracle(arrays, recipe, low):
    x, weight, bias, grad = arrays
    settings = ";".join([f"recipe={recipe}", *(f"{product}=bfloat16" for product in low)])
    found = Layer(emulated(settings), weight, bias).run(x, grad)
    low = {*low, "wgrad"} if recipe == "rowwise_gw_hp" else low
    for mine, wanted in zip(found, expected(recipe, low, *arrays), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2**-7, atol=2**-7 * np.abs(wanted).mean())
    plain = expected(recipe, ("fprop", "dgrad", "wgrad"), *arrays)
    differ = [distance(mine, other) > 2e-3 for mine, other in zip(found, plain, strict=True)]
    assert differ == ["fprop" not in low, "dgrad" not in low, "wgrad" not in low, False]


@pytest.mark.parametrize("recipe", ["rowwise", "block128"])
def test_compiled_products_are_those_of_the_oracle(arrays, recipe):
    x, weight, bias, grad = arrays
    found = Layer(emulated(f"recipe={recipe}"), weight, bias, "compiled").run(x, grad)
    for mine, wanted in zip(found, expected(recipe, (), *arrays), strict=True):
        assert distance(mine, wanted) < 0.005


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", *FINE])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "grad"])
def test_an_inf_or_nan_reaches_the_finite_check(arrays, recipe, bad, where):
    x, weight, bias, grad = arrays
    layer = Layer(emulated(f"recipe={recipe}", loss_scale=1.0), weight, bias)
    layer.run(x, grad)
    worse = {"x": x.copy(), "grad": grad.copy()}
    worse[where][3, 5] = bad
    layer.run(**worse)
    assert (layer.amp.applied_steps, layer.amp.skipped_steps) == (1, 1)
    assert not torch.isfinite(layer.kept["weight"]).all()
    layer.run(x, grad)
    assert layer.amp.applied_steps == 2


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", *FINE])
def test_zeros_give_zeros(arrays, recipe):
    _, weight, bias, grad = arrays
    layer = Layer(emulated(f"recipe={recipe}"), weight, bias)
    for _ in range(2):
        out, dx, dw, _ = layer.run(np.zeros((ROWS, INPUTS)), grad * 0)
        np.testing.assert_array_equal(out, np.broadcast_to(bias, out.shape))
        assert not dx.any()
        assert not dw.any()


def both_products(a, b, scaling):
    """The product of two casts, native and emulated."""
    return [float8_products.product(a, b, scaling, torch.float32, emulate) for emulate in (False, True)]


def test_the_native_product_of_rows_is_the_emulated_one():
    """As near as bfloat16 tells, and as sums on a GPU: each addend is cut to 13 bits below the largest one's first."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(size, 64, generator=generator).to(device) for size in (48, 32))
    native, emulated_ = both_products(*(cast(values, E4M3, casts.ROW).rows for values in (x, y)), casts.ROW)
    largest = (x[:, None] * y[None]).abs().amax(-1) * (1 + 2**-3)  # both factors were rounded to 4 bits
    allowed = 2**-7 * emulated_.abs() + (64 * 2**-13 * largest if device == "cuda" else 1e-3)
    assert ((native - emulated_).abs() <= allowed).all()


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="before torch 2.10")
@pytest.mark.parametrize("inputs", [128, 384, 512])
@pytest.mark.parametrize("of_b", [casts.BLOCKS, casts.SQUARES])
def test_scales_of_blocks_are_laid_out_as_torch_wants_them(monkeypatch, inputs, of_b):
    """Torch's own checks of the GPU's product stand in for it."""

    def checked(a, b, *, scale_a, scale_b, out_dtype):
        with monkeypatch.context() as patched:
            patched.setattr(torch._meta_registrations, "device_hint", lambda _: "cuda")
            return torch._meta_registrations.meta_scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", checked)
    a = cast(torch.randn(256, inputs), E4M3, casts.BLOCKS).rows
    b = cast(torch.randn(384, inputs), E4M3, of_b).rows
    native, emulated_ = both_products(a, b, casts.BLOCKS)
    assert native.shape == emulated_.shape == (256, 384)


def test_sizes_that_a_recipe_refuses():
    model = torch.nn.Sequential(torch.nn.Linear(256, 48), torch.nn.Linear(48, 128), torch.nn.Linear(128, 256))
    amp = emulated("recipe=block128")
    amp.prepare(model)
    plan = amp.explain()
    assert [plan.row(f"float8.{index}").note for index in range(3)] == [
        "out_features=48: not a multiple of 128", "in_features=48: not a multiple of 128", "",
    ]  # fmt: skip
    amp = emulated("recipe=rowwise", backend_options={"torch": {"float8_min_features": 100}})
    amp.prepare(torch.nn.Sequential(torch.nn.Linear(256, 48), torch.nn.Linear(128, 128)))
    assert "multiples of 16 and at least 100" in amp.explain().row("float8").note
    assert amp.explain().row("float8.0").note == "out_features=48: below float8_min_features=100"
    assert amp.explain().row("float8.1").value == "float8"
    with pytest.raises(ua.ConfigError, match="float8_min_features must be a whole number of 0 or more, got True"):
        emulated("recipe=rowwise", backend_options={"torch": {"float8_min_features": True}})


def test_explain_says_recipe_and_formats():
    row = emulated("recipe=delayed;wgrad=bfloat16;margin=2;amax_history=16").explain().row("float8 recipe")
    assert (row.value, row.native) == ("delayed", "fprop: e4m3 x e4m3, dgrad: e5m2 x e4m3, wgrad: bfloat16")
    assert row.note.endswith("largest magnitudes of the last 16 steps, margin 2")
    row = emulated("recipe=rowwise_with_gw_hp").explain().row("float8 recipe")
    assert (row.value, row.native) == ("rowwise_gw_hp", "fprop: e4m3 x e4m3, dgrad: e4m3 x e4m3, wgrad: bfloat16")


@pytest.mark.parametrize(
    ("capability", "recipe", "nearest"),
    [
        ((8, 9), "delayed", None), ((8, 9), "rowwise", "mixed_float8"), ((8, 9), "block128", "mixed_float8"),
        ((9, 0), "rowwise", None), ((9, 0), "block128", None), ((10, 0), "block128", "mixed_float8;recipe=rowwise"),
        ((8, 0), "rowwise", "mixed_bfloat16"),
    ],
)  # fmt: skip
def test_a_recipe_that_a_device_lacks_names_the_nearest(monkeypatch, capability, recipe, nearest):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    from unifiedamp_torch.capabilities import check_policy

    spec = emulated(f"recipe={recipe}").backend.spec
    policy = spec.policy.replace(emulate=False)
    check = lambda: check_policy(ua.backend.SessionSpec(policy, spec.loss_scale), torch.device("cuda"), False)  # noqa: E731
    if nearest is None:
        check()
        return
    with pytest.raises(ua.PolicyNotSupportedError) as refusal:
        check()
    assert f"nearest that does: {nearest!r}; '{policy};emulate=true' runs its numerics anywhere" in str(refusal.value)


def test_a_region_of_another_recipe_is_refused():
    with pytest.raises(ua.UnsupportedError, match="made ready for recipe 'delayed'"):
        emulated("recipe=delayed").autocast(policy="mixed_float8;emulate=true")
