"""Grouped products of experts in float8: against an oracle in numpy's float64, and which modules have them."""

from contextlib import closing

import numpy as np
import pytest
import torch
from loops import check_copies, session
from test_torch_float8_recipes import bfloat16, operand
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua
from unifiedamp.conformance import float8 as kit
from unifiedamp_torch.compiling.compile import ready_dynamo
from unifiedamp_torch.precision import float8_grouped
from unifiedamp_torch.precision.float8_layers import how

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm"), reason="torch.nn.functional.grouped_mm came with torch 2.10"
)
INPUTS, OUTPUTS = 32, 48
SIZES = {
    "even": (16, 16, 32), "odd": (7, 24, 1), "empty": (0, 20, 0, 0, 13), "one": (40,), "none": (0, 0),
}  # fmt: skip
IN_NO_GROUP = 5


class Experts(torch.nn.Module):
    """One linear layer for each expert; ``turned``: weights are stored as those of ``torch.nn.Linear``."""

    def __init__(self, experts=3, inputs=INPUTS, outputs=OUTPUTS, turned=False):
        super().__init__()
        shape = (experts, outputs, inputs) if turned else (experts, inputs, outputs)
        self.weight, self.turned = torch.nn.Parameter(torch.randn(shape) / 8), turned

    def forward(self, x, offs):
        weight = self.weight.mT if self.turned else self.weight
        return torch.nn.functional.grouped_mm(x, weight.to(x.dtype), offs=offs)


def ends(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def arrays(sizes, seed=0):
    """x, weights and the gradient of the output, in numbers that bfloat16 holds."""
    rows, groups = sum(sizes) + IN_NO_GROUP, len(sizes)
    weight = bfloat16(groups * INPUTS, OUTPUTS, seed=seed + 1, spread=0.3).reshape(groups, INPUTS, OUTPUTS)
    x, grad = bfloat16(rows, INPUTS, seed=seed, spread=0.3), bfloat16(rows, OUTPUTS, seed=seed + 2, spread=0.3)
    return x, weight, grad


def expected(sizes, low, x, weight, grad):
    """Output and gradients of x and weight, group by group; ``low``: products that run in bfloat16."""
    take = lambda product, each: each if product in low else operand("rowwise", each)  # noqa: E731
    out, dx, dw, first = np.zeros((sum(sizes), OUTPUTS)), np.zeros((sum(sizes), INPUTS)), np.zeros(weight.shape), 0
    for i, size in enumerate(sizes):
        rows = slice(first, first + size)
        first += size
        if size:
            out[rows] = take("fprop", x[rows]) @ take("fprop", weight[i].T).T
            dx[rows] = take("dgrad", grad[rows]) @ take("dgrad", weight[i]).T
            dw[i] = take("wgrad", x[rows].T) @ take("wgrad", grad[rows].T).T
    return [kit.BFLOAT16.round(each) for each in (out, dx, dw)]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_columns_of_one_sign_have_finite_gradients(sign):
    """Their scale follows magnitudes: of numbers that are all negative as of those that are all positive."""
    sizes = (3, 4)
    model, x, grad = tensors(sizes)
    x, grad = (x.detach().abs() * sign).requires_grad_(), grad.abs() * sign
    with closing(prepared("recipe=rowwise", model)) as amp:
        _, _, found = run(model, x, grad, sizes, amp)
    weight = model.weight.detach().float().numpy()
    _, _, wanted = expected(sizes, (), x.detach().float().numpy(), weight, grad.float().numpy())
    np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=2**-7 * np.abs(wanted).max())


def tensors(sizes, turned=False):
    x, weight, grad = (torch.tensor(each, dtype=torch.float32).bfloat16() for each in arrays(sizes))
    model = Experts(len(sizes), turned=turned)
    with torch.no_grad():
        model.weight.copy_(weight.mT if turned else weight)
    return model, x.requires_grad_(), grad


def run(model, x, grad, sizes, amp):
    """The output and the gradients of x and the weight, without the rows of no group."""
    with amp.autocast():
        out = model(x, ends(sizes))
    rows = sum(sizes)
    dx, dw = torch.autograd.grad(out[:rows], [x, model.weight], grad[:rows])
    dw = dw.mT if model.turned else dw
    return [each.float().detach().numpy() for each in (out[:rows], dx[:rows], dw)]


def prepared(settings, model, **options):
    """A session that runs ``model`` in float8, emulated."""
    amp = session(f"mixed_float8;{settings};emulate=true", **options)
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.125))
    return amp


@pytest.mark.parametrize("turned", [False, True], ids=["inputs first", "outputs first"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    ("settings", "low"),
    [
        ("recipe=rowwise", ()),
        ("recipe=rowwise_gw_hp", ("wgrad",)),
        ("recipe=rowwise;fprop=bfloat16", ("fprop",)),
        ("recipe=rowwise;dgrad=bfloat16", ("dgrad",)),
    ],
    ids=["all", "wgrad", "fprop", "dgrad"],
)
def test_products_of_each_group(settings, low, sizes, turned):
    model, x, grad = tensors(sizes, turned)
    with closing(prepared(settings, model)) as amp:
        found = run(model, x, grad, sizes, amp)
    for each, wanted in zip(found, expected(sizes, low, *arrays(sizes)), strict=True):
        np.testing.assert_allclose(each, wanted, rtol=2**-7, atol=2**-7 * max(np.abs(wanted).max(initial=0), 1e-30))


@pytest.mark.parametrize("sizes", [SIZES["odd"], SIZES["empty"]], ids=["odd", "empty"])
def test_traced_without_a_break_the_numbers_are_the_same(sizes):
    ready_dynamo()
    torch._dynamo.reset()
    model, x, grad = tensors(sizes)
    with closing(prepared("recipe=rowwise", model)) as amp:
        wanted = run(model, x, grad, sizes, amp)
        with amp.autocast():
            out = torch.compile(model, backend="aot_eager", fullgraph=True)(x, ends(sizes))
        rows = sum(sizes)
        dx, dw = torch.autograd.grad(out[:rows], [x, model.weight], grad[:rows])
    for each, other in zip((out[:rows], dx[:rows], dw), wanted, strict=True):
        np.testing.assert_array_equal(each.float().detach().numpy(), other)


@pytest.fixture
def strict_product(monkeypatch):
    """``torch._scaled_grouped_mm`` as a GPU of compute capability 9.0 takes it, computed on CPU; counts its calls."""
    calls = []

    def product(a, b, scale_a, scale_b, offs, *, out_dtype, use_fast_accum):
        assert a.dtype is b.dtype is torch.float8_e4m3fn
        assert (out_dtype, use_fast_accum, offs.dtype) == (torch.bfloat16, True, torch.int32)
        assert a.stride() == (a.shape[1], 1), "row-major"
        assert b.stride()[-2:] == (1, b.shape[-2]), "column-major"
        assert all(size % 16 == 0 for size in (a.shape[1], *b.shape[-2:]))
        wide_a, wide_b, groups = a.float(), b.float(), len(offs)
        calls.append(b.dim())
        if b.dim() == 3:
            assert (scale_a.shape, scale_b.shape) == ((len(a),), (groups, b.shape[2]))
            wide_a, wide_b = wide_a * scale_a[:, None], wide_b * scale_b[:, None]
        else:
            lengths = torch.diff(offs, prepend=offs.new_zeros(1))
            assert (lengths % 16 == 0).all()
            assert (lengths > 0).all(), "a group without rows is left unwritten"
            assert offs[-1] <= a.shape[1]
            assert (scale_a.shape, scale_b.shape) == ((groups * len(a),), (groups * b.shape[1],))
            group = torch.searchsorted(offs, torch.arange(a.shape[1]), right=True).clamp(max=groups - 1)
            wide_a = wide_a * scale_a.reshape(groups, -1)[group].t()
            wide_b = wide_b * scale_b.reshape(groups, -1)[group]
        return torch._grouped_mm(wide_a, wide_b, offs).bfloat16()

    monkeypatch.setattr(torch, "_scaled_grouped_mm", product)
    return calls


@pytest.mark.parametrize("turned", [False, True], ids=["inputs first", "outputs first"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_native_product_is_called_as_the_hardware_wants_it(strict_product, sizes, turned):
    results = []
    for emulate in (False, True):
        model, x, grad = tensors(sizes, turned)
        weight = model.weight.mT if turned else model.weight
        recipe = ua.Policy.parse("mixed_float8;recipe=rowwise").float8
        out = float8_grouped.grouped(x, weight, ends(sizes), how(recipe), emulate)[: sum(sizes)]
        dx, dw = torch.autograd.grad(out, [x, model.weight], grad[: sum(sizes)])
        results.append((out, dx[: sum(sizes)], dw))
    assert strict_product == [3, 3, 2]
    for native, emulated in zip(*results, strict=True):
        assert torch.equal(native, emulated)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_stays_in_its_group(value):
    sizes = (16, 16)
    model, x, grad = tensors(sizes)
    with torch.no_grad():
        x[3, 2] = value
    with closing(prepared("recipe=rowwise", model)) as amp:
        out, _, dw = run(model, x, grad, sizes, amp)
    assert not np.isfinite(out[3]).any()
    assert np.isfinite(np.delete(out, 3, 0)).all()
    assert not np.isfinite(dw[0, 2]).any()
    assert np.isfinite(np.delete(dw[0], 2, 0)).all()
    assert np.isfinite(dw[1]).all()


class Mixture(torch.nn.Module):
    """Two grouped products and a linear layer."""

    def __init__(self, recompute=False):
        super().__init__()
        self.first, self.second, self.recompute = Experts(3), Experts(3, OUTPUTS, INPUTS, turned=True), recompute
        self.head = torch.nn.Linear(INPUTS, 16)

    def experts(self, x, offs):
        return self.second(torch.nn.functional.silu(self.first(x, offs)), offs)

    def forward(self, x):
        offs = ends((10, 0, len(x) - 10))
        hidden = checkpoint(self.experts, x, offs, use_reentrant=False) if self.recompute else self.experts(x, offs)
        return self.head(hidden)


def trained(policy, steps=3, recompute=False, **options):
    torch.manual_seed(0)
    model, generator = Mixture(recompute), torch.Generator().manual_seed(1)
    amp = session(policy, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    amp.prepare(model, optimizer)
    for _ in range(steps):
        x = torch.randn(40, INPUTS, generator=generator).bfloat16()
        with amp.autocast():
            loss = model(x).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
    rows = {row.setting: row for row in amp.explain().rows}
    return amp, model, rows


ROWWISE = "mixed_float8;recipe=rowwise;emulate=true"


def test_a_model_trains_and_recomputes():
    amp, model, rows = trained(ROWWISE)
    _, plain, _ = trained("mixed_float8;recipe=rowwise;emulate=true;layers=first:bfloat16,second:bfloat16")
    _, again, _ = trained(ROWWISE, recompute=True)
    assert rows["float8.first"].value == rows["float8.head"].value != "not float8"
    assert not torch.equal(model.first.weight, plain.first.weight), "the experts run in bfloat16"
    torch.testing.assert_close(model.first.weight, plain.first.weight, atol=2e-3, rtol=0.05)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    amp.close()
    assert "forward" not in vars(model.first)


def test_copies_answer_as_the_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Mixture(), torch.nn.Linear(16, 16))
    with closing(session(ROWWISE)) as amp:
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        check_copies(amp, model, 1, torch.randn(40, INPUTS).bfloat16())


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")  # that nothing is left in float8
@pytest.mark.parametrize(
    ("settings", "options", "why"),
    [
        ("recipe=tensorwise", {}, "scales of rows (rowwise, rowwise_gw_hp)"),
        ("recipe=delayed", {}, "scales of rows (rowwise, rowwise_gw_hp)"),
        ("recipe=rowwise;layers=first:bfloat16", {}, "layer_overrides: bfloat16"),
        ("recipe=rowwise", {"float8_min_features": 48}, "weight: (3, 32, 48): below float8_min_features=48"),
    ],
    ids=["tensorwise", "delayed", "overridden", "small"],
)
def test_what_stays_in_bfloat16_is_explained(settings, options, why):
    amp, model, rows = trained(f"mixed_float8;{settings};emulate=true", 0, backend_options={"torch": options})
    row = rows["float8.first"]
    assert row.value == "not float8"
    assert why in row.note
    x, offs = torch.randn(40, INPUTS).bfloat16(), ends((16, 16, 8))
    with amp.autocast():
        assert torch.equal(model.first(x, offs), torch._grouped_mm(x, model.first.weight.bfloat16(), offs))


def test_outside_regions_and_with_other_arguments_it_is_torch_s_own():
    amp, model, _ = trained(ROWWISE, 0)
    x, offs = torch.randn(40, INPUTS).bfloat16(), ends((16, 16, 8))
    plain = torch._grouped_mm(x, model.first.weight.bfloat16(), offs)
    assert torch.equal(model.first(x, offs), plain)
    with amp.autocast(enabled=False):
        assert torch.equal(model.first(x, offs), plain)
    with amp.autocast():
        assert not torch.equal(model.first(x, offs), plain)
        odd = torch.randn(3, INPUTS, 8).bfloat16()
        assert torch.equal(torch._grouped_mm(x, odd, offs), torch._grouped_mm(x, odd, offs=offs))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_forward_that_leaves_autocast_leaves_float8(compiled):
    class Wide(Experts):
        def forward(self, x, offs):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x, offs)

    ready_dynamo()
    torch._dynamo.reset()
    model, x, offs = Wide(), torch.randn(40, INPUTS).bfloat16(), ends((16, 16, 8))
    with closing(prepared("recipe=rowwise", model)) as amp:
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with amp.autocast():
            assert torch.equal(run(x, offs), torch._grouped_mm(x, model.weight.bfloat16(), offs))


def test_experts_alone_are_enough():
    for policy, options in ((ROWWISE, {}), ("mixed_float8;emulate=true", {"match": "runs nothing of Experts"})):
        model = Experts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with closing(session(policy)) as amp:
            if not options:
                amp.prepare(model, optimizer)  # a warning would be an error
                continue
            with pytest.warns(ua.PolicyWarning, **options):
                amp.prepare(model, optimizer)


def test_a_torch_that_hides_them_from_dynamo_leaves_them_as_they_are(monkeypatch):
    monkeypatch.delattr("torch._dynamo.variables.torch.get_overridable_functions")
    _, _, rows = trained(ROWWISE, 0)
    assert rows["float8.first"].value == "not float8"
    assert "would not do so in compiled code" in rows["float8.first"].note
