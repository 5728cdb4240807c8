"""Rounding on torch: bit-equal to the reference, eager and compiled; emulated steps against the native dtype's."""

import numpy as np
import pytest
import torch

import unifiedamp as ua
from unifiedamp.backend import rounding
from unifiedamp.formats import BLOCK_FORMATS, FLOAT_FORMATS
from unifiedamp.formats.block_rounding import round_blocks as block_reference
from unifiedamp.formats.rounding import round_to as reference
from unifiedamp_torch.precision.block_rounding import round_blocks
from unifiedamp_torch.precision.rounding import round_to, rounded
from unifiedamp_torch.training import rounded_update

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def values():
    wide = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([wide + step for step in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)


def bits(tensor):
    array = np.asarray(tensor)
    return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32))


@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_bits_of_the_reference(name):
    given, form = values(), FLOAT_FORMATS[name]
    for saturate in (False, True):
        found = round_to(torch.from_numpy(given).to(DEVICE), form, saturate)
        np.testing.assert_array_equal(bits(found.cpu()), bits(reference(given, form, saturate)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch imports a part that has one
def test_compiled_bits_are_those_of_eager():
    given = values()
    forms = [FLOAT_FORMATS[name] for name in ("float16", "bfloat16", "float8_e4m3fn")]
    found = torch.compile(lambda x: [round_to(x, form) for form in forms])(torch.from_numpy(given).to(DEVICE))
    for form, each in zip(forms, found, strict=True):
        np.testing.assert_array_equal(bits(each.cpu()), bits(reference(given, form)))


def blocks():
    """Rows of 72 numbers: random bits of float32, and all bfloat16 numbers with those of like size side by side."""
    random = np.random.default_rng(0).integers(0, 2**32, 2**14, np.uint32).view(np.float32)
    both = np.concatenate([random, values()[: 2**16]])
    return both[: len(both) // 72 * 72].reshape(-1, 72)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # as above
@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_bits_of_block_formats(form):
    def run(given):
        return [round_blocks(given, format) for format in BLOCK_FORMATS.values()]

    given = blocks()
    found = (run if form == "eager" else torch.compile(run))(torch.from_numpy(given).to(DEVICE))
    for each, format in zip(found, BLOCK_FORMATS.values(), strict=True):
        here, expected = each.cpu().numpy(), block_reference(given, format)
        if form == "compiled" and DEVICE == "cuda" and format.scale != "e8m0":
            # Triton divides by an approximate reciprocal: scales differ in their last place.
            assert np.isclose(here, expected, rtol=2.0**-21, atol=0, equal_nan=True).mean() > 0.999, format.name
        else:
            np.testing.assert_array_equal(bits(here), bits(expected), format.name)


def test_the_gradient_is_rounded_too():
    x = torch.ones(2, requires_grad=True)
    rounded(x, FLOAT_FORMATS["float16"]).backward(torch.tensor([1 + 2**-12, 1e6]))
    assert x.grad.tolist() == [1.0, float("inf")]


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("mixed_bfloat16", 2.0**-12), ("mixed_float16", 2.0**-13), ("bfloat16", 2.0**-7), ("float16", 2.0**-10)],
)
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.NoGainWarning")
def test_an_emulated_step_is_close_to_the_native_one(policy, limit):
    """Both round at the same places; they add up in another order, so that a few results are neighbours."""
    trained = {}
    for text in ("float32", policy, f"{policy};emulate=true"):
        torch.manual_seed(0)
        amp = ua.Amp("torch", text, device="cpu")
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 8)
        )
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.randn(8, 1, 8, 8)
        for _ in range(3):
            amp.backward(lambda model=model, x=x: model(x).square().mean(), optimizer)
            amp.step(optimizer)
        trained[text] = torch.cat([param.detach().flatten().float() for param in model.parameters()])
        amp.close()
    single, native, emulated = trained.values()
    assert (native - emulated).abs().max() < limit
    assert (native - single).abs().max() > 0


def test_operations_that_autocast_casts_stay_in_16_bits():
    """Regions of 16-bit parameters are regions of autocast, for products alone; others keep their inputs' dtype."""
    amp = ua.Amp("torch", "float16;emulate=true", device="cpu")
    x, wide = torch.rand(4, 4).half(), torch.rand(4, 4)
    calls = [
        lambda x: torch.nn.functional.mse_loss(x, x), lambda x: x.prod(), lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.stack([x, x]), lambda x: x @ x, lambda x: x.mv(x[0]),
        lambda x: torch.nn.functional.pad(x[None], (1, 1), "reflect"),
    ]  # fmt: skip
    with amp.autocast():
        assert {call(x).dtype for call in calls} == {torch.float16}
        assert {call(wide).dtype for call in calls} == {torch.float32}
        with pytest.raises(RuntimeError, match="dtype"):
            x @ wide
    amp.close()


def test_what_cannot_be_emulated_names_what_can():
    amp = ua.Amp("torch", "mixed_float8;emulate=true", device="cpu")
    assert amp.explain().row("emulate").effect == "emulated"
    with pytest.raises(ua.PolicyNotSupportedError, match="without emulate"):
        amp.convert_model(torch.nn.Linear(16, 16), policy="mixed_bfloat16;emulate=true")
    amp.close()


@pytest.mark.parametrize("seed", [0, 1, 4, 7, 2**31 - 1, 2**31, 2**32 - 1])
def test_keys_of_steps_are_the_references(seed):
    """On a device, which counts in int32."""
    for count in (0, 1, 2, 1000, 2**31 - 1):
        key = rounded_update.step_key(seed, torch.tensor(count, dtype=torch.int32, device=DEVICE))
        assert int(key) & rounding.MASK == rounding.step_key(seed, count)
