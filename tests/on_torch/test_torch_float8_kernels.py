"""Casts to float8 by Triton kernels: the numbers of plain operations, and what overflowed; on a GPU that has float8."""

import pytest
import torch

import unifiedamp as ua
from unifiedamp_torch.device.selection import has_float8_kernels
from unifiedamp_torch.precision.float8_casts import BLOCKS, E4M3, E5M2, ROW, SQUARES, TENSOR, cast

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
