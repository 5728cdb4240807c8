"""Casts to float8 by Triton kernels: the numbers of plain operations, and what overflowed; on a GPU that has float8."""

import pytest
import torch

import unifiedamp as ua
from unifiedamp_torch.device.selection import has_float8_kernels
from unifiedamp_torch.precision import float8_grouped
from unifiedamp_torch.precision.float8 import How
from unifiedamp_torch.precision.float8_casts import BLOCKS, E4M3, E5M2, ROW, SQUARES, TENSOR, Scaled, cast

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_float8_kernels(torch.device("cuda"))), reason="needs a GPU with float8"
)
WHOLE, OTHER = [(128, 128), (256, 640)], [(16, 48), (200, 336), (1040, 16)]
"""Shapes of whole blocks, which block scales need, and others."""
CASES = [(scaling, shape) for scaling in (TENSOR, "given", ROW) for shape in WHOLE + OTHER]
CASES += [(scaling, shape) for scaling in (BLOCKS, SQUARES) for shape in WHOLE]
RECIPES = ["tensorwise", "delayed", "rowwise", "rowwise_gw_hp", "block128"]


def made(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    numbers = torch.randn(shape, device="cuda", generator=generator)
    numbers *= torch.exp2(torch.randint(-12, 5, (shape[0], 1), device="cuda", generator=generator).float())
    numbers[3] = 0
    return numbers.to(dtype)


def assert_same(one, other):
    assert (one is None) == (other is None)
    if one is not None:
        assert one.values.is_contiguous()
        assert one.inverse.shape == other.inverse.shape
        torch.testing.assert_close(one.values.view(torch.uint8), other.values.view(torch.uint8), rtol=0, atol=0)
        torch.testing.assert_close(one.inverse, other.inverse, rtol=0, atol=0)


@pytest.mark.parametrize(("scaling", "shape"), CASES, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_kernel_casts_as_plain_operations_do(scaling, source, shape):
    tensor = made(shape, source)
    scale = torch.full((1,), 3.7, device="cuda") if scaling == "given" else None
    kind = TENSOR if scaling == "given" else scaling
    for dtype in (E4M3, E5M2):
        for transposed in (True, False):
            kernel, plain = (
                cast(tensor, dtype, kind, transposed=transposed, scale=scale, kernels=on) for on in (True, False)
            )
            assert_same(kernel.rows, plain.rows)
            assert_same(kernel.transposed, plain.transposed)
            if plain.amax is not None:
                assert float(kernel.amax) == float(plain.amax)


BY_KERNEL, PLAIN = How(ROW, kernels=True), How(ROW)
GROUPS = [(300, 211, 1000, 0, 5), (7, 24, 1), (0, 20, 0, 0, 13), (1,) * 40, (0, 0)]


def ends(sizes):
    return torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)


@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=str)
def test_a_kernel_casts_groups_as_plain_operations_do(source, sizes):
    tensor, rows = made((sum(sizes) + 5, 528), source), sum(sizes)  # the last rows are in no group
    layout = float8_grouped.Layout.of(len(tensor), ends(sizes))
    length = int(layout.bounds[-1])
    for wants_rows in (True, False):
        (kernel_rows, kernel), (plain_rows, plain) = (
            layout.cast(tensor, how, wants_rows, True) for how in (BY_KERNEL, PLAIN)
        )
        assert (kernel_rows is None) == (plain_rows is None) == (not wants_rows)
        if wants_rows:
            assert_same(*(Scaled(each.values[:rows], each.inverse[:rows]) for each in (kernel_rows, plain_rows)))
        used = [Scaled(each.values[:, :length].contiguous(), each.inverse) for each in (kernel, plain)]
        assert_same(*used)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_grouped_products_as_emulated(sizes, compiled, turned):
    x, grad = made((sum(sizes) + 5, 64), torch.bfloat16), made((sum(sizes) + 5, 48), torch.bfloat16, seed=1)
    weight = made((len(sizes) * 64, 48), torch.float32, seed=2).view(len(sizes), 64, 48)
    weight = weight.mT.contiguous().mT if turned else weight
    results = []
    for how, emulate in ((BY_KERNEL, False), (PLAIN, True)):
        torch._dynamo.reset()
        run = torch.compile(float8_grouped.grouped, fullgraph=True) if compiled else float8_grouped.grouped
        inputs = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = run(*inputs, ends(sizes), how, emulate)[: sum(sizes)]
        dx, dw = torch.autograd.grad(out, inputs, grad[: sum(sizes)])
        results.append((out, dx[: sum(sizes)], dw))
    for native, emulated in zip(*results, strict=True):
        if native.numel():
            error = (native.float() - emulated.float()).abs().max()
            assert error <= 2**-6 * emulated.float().abs().max()


@pytest.mark.parametrize("scaling", [TENSOR, "given", ROW, BLOCKS, SQUARES])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_is_not_cast_away(bad, scaling):
    tensor = torch.randn(128, 256, device="cuda")
    tensor[5, 7] = bad
    scale = torch.ones(1, device="cuda") if scaling == "given" else None
    found = cast(tensor, E4M3, TENSOR if scaling == "given" else scaling, transposed=True, scale=scale, kernels=True)
    for matrix, (row, column) in ((found.rows, (5, 7)), (found.transposed, (7, 5))):
        value = matrix.values.float()[row, column]
        assert not torch.isfinite(value) or not matrix.inverse.isfinite().all()


def trained(policy, mode, monkeypatch, kernels=True):
    monkeypatch.setattr("unifiedamp_torch.training.prepare.has_float8_kernels", lambda _: kernels)
    torch.manual_seed(0)
    amp = ua.Amp("torch", policy, compile=mode)
    model = torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.GELU(), torch.nn.Linear(384, 128)).cuda()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
    x, y = (torch.randn(100, size, device="cuda") for size in (256, 128))

    @amp.compile
    def step():
        with amp.autocast():
            loss = torch.nn.functional.mse_loss(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss.detach()

    losses = [float(step()) for _ in range(6)]
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("recipe", RECIPES)
def test_kernels_train_as_plain_operations_do(recipe, monkeypatch):
    policy = f"mixed_float8;recipe={recipe}"
    losses, weights = trained(policy, "off", monkeypatch)
    plain_losses, plain_weights = trained(policy, "off", monkeypatch, kernels=False)
    assert losses == plain_losses
    torch.testing.assert_close(weights, plain_weights, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_compiled_step_runs_the_kernels(recipe, mode, monkeypatch):
    policy = f"mixed_float8;recipe={recipe}"
    losses, weights = trained(policy, mode, monkeypatch)
    eager_losses, eager_weights = trained(policy, "off", monkeypatch)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(eager_losses), rtol=2e-3, atol=0)
    torch.testing.assert_close(weights, eager_weights, rtol=0, atol=2e-3)
