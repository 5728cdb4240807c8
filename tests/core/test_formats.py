"""Rounding to number formats: every pattern of 8 and 16 bits and random float32 numbers as ml_dtypes casts them."""

import json
from pathlib import Path

import numpy as np
import pytest

import unifiedamp
from unifiedamp.formats import BLOCK_FORMATS, FLOAT_FORMATS
from unifiedamp.formats.block_rounding import round_blocks
from unifiedamp.formats.rounding import round_scaled, round_to
from unifiedamp.formats.scaled_rounding import round_operand
from unifiedamp.formats.scaling import scale_values

ml_dtypes = pytest.importorskip("ml_dtypes")

GOLDEN = json.loads((Path(unifiedamp.__file__).parent / "conformance/vectors/rounding/formats.json").read_text())
CASTS = {name: getattr(ml_dtypes, name, None) for name in FLOAT_FORMATS if name not in ("float16", "int8")}
CASTS["float16"] = np.float16


def patterns():
    """All float16 and bfloat16 numbers, neighbours of ties, subnormals, and random bits of float32."""
    every = np.arange(2**16, dtype=np.uint16)
    wide = every.astype(np.uint32) << 16
    near = np.concatenate([wide + step for step in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    random = np.random.default_rng(0).integers(0, 2**32, 2**17, np.uint32).view(np.float32)
    half = every.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.concatenate([near, random, half, np.nextafter(half, np.float32(9e9)), half * np.float32(1 + 2**-11)])


def same(found, expected):
    """Equal bits; one nan is as good as another."""
    found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
    both = np.isnan(found) & np.isnan(expected)
    return both | (found.view(np.uint32) == expected.view(np.uint32))


@pytest.mark.parametrize("name", CASTS)
def test_rounds_as_ml_dtypes(name):
    kind = CASTS[name] or pytest.skip(f"an ml_dtypes with {name} is not installed")
    values = patterns()
    if FLOAT_FORMATS[name].overflow == "saturate":
        values = values[~np.isnan(values)]  # what a format without nan makes of one is not defined
    with np.errstate(all="ignore"):
        expected = values.astype(kind).astype(np.float32)
    assert same(round_to(values, FLOAT_FORMATS[name]), expected).all()


@pytest.mark.parametrize("name", CASTS)
def test_golden_vectors_are_casts_of_ml_dtypes(name):
    kind = CASTS[name] or pytest.skip(f"an ml_dtypes with {name} is not installed")
    values, golden = (
        np.array([int(text, 16) for text in texts], np.uint32).view(np.float32)
        for texts in (GOLDEN["inputs"], GOLDEN["rounded"][name])
    )
    known = ~np.isnan(values) if FLOAT_FORMATS[name].overflow == "saturate" else np.full(values.shape, True)
    with np.errstate(all="ignore"):
        assert same(golden, values.astype(kind).astype(np.float32))[known].all()


@pytest.mark.parametrize("name", [name for name in CASTS if "8" in name or "float6" in name or "float4" in name])
def test_keeps_every_number_of_the_format(name):
    kind = CASTS[name] or pytest.skip(f"an ml_dtypes with {name} is not installed")
    size = 2 ** (1 + FLOAT_FORMATS[name].exponent_bits + FLOAT_FORMATS[name].mantissa_bits)
    numbers = np.arange(size, dtype=np.uint8).view(kind).astype(np.float32)
    assert same(round_to(numbers, FLOAT_FORMATS[name]), numbers).all()
    finite = numbers[np.isfinite(numbers)]
    form = FLOAT_FORMATS[name]
    assert (finite.max(), finite[finite > 0].min()) == (form.max, form.min_subnormal)
    assert form.has_inf == bool(np.isinf(numbers).any())


@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_saturates_when_asked(name):
    form = FLOAT_FORMATS[name]
    values = np.array([np.inf, -np.inf, np.nan, -0.0, 1.0], np.float32)
    expected = np.array([form.max, -form.max, np.nan, -0.0, 1.0], np.float32)
    assert same(round_to(values, form, saturate=True), expected).all()


def test_scaled_rounding_fills_the_range_and_hides_nothing():
    form = FLOAT_FORMATS["float8_e4m3fn"]
    rounded, inverse = round_scaled([[0.1, -3.5], [0.0, 1.0]], form)
    assert np.abs(rounded).max() == 448.0
    np.testing.assert_allclose(rounded * inverse, [[0.1, -3.5], [0.0, 1.0]], rtol=2**-4)
    assert round_scaled(np.zeros(4), form)[0].tolist() == [0.0] * 4
    for bad in (np.inf, np.nan):
        rounded, inverse = round_scaled([bad, 1.0], form)
        with np.errstate(invalid="ignore"):
            assert np.isnan(rounded * inverse).any()


def block_oracle(block, form):
    """One block in float64, from the specification's words, by trying every number of the format."""
    largest = np.abs(block).max()
    if not largest:
        return block
    scale = 2.0 ** (np.floor(np.log2(largest)) - np.floor(np.log2(form.element.max)))
    count = 2**form.element.mantissa_bits
    exponents = range(form.element.min_exponent, form.element.max_exponent + 1)
    numbers = [2.0**e * (1 + k / count) for e in exponents for k in range(count)]
    numbers += [form.element.min_normal * k / count for k in range(count)]
    numbers = np.array(sorted(n for n in numbers if n <= form.element.max))
    index = np.abs(np.abs(block / scale)[:, None] - numbers).argmin(1)
    return np.sign(block) * numbers[index] * scale


@pytest.mark.parametrize("name", [name for name, form in BLOCK_FORMATS.items() if form.scale == "e8m0"])
def test_blocks_share_a_power_of_two(name):
    form = BLOCK_FORMATS[name]
    values = (np.random.default_rng(0).normal(size=(6, 50)) * np.exp2(np.arange(-3.0, 3))[:, None]).astype(np.float32)
    values[2, :32] = 0
    found = round_blocks(values, form)
    expected = [np.concatenate([block_oracle(row[:32], form), block_oracle(row[32:], form)]) for row in values]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_nvfp4_has_two_levels_of_scales():
    values = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    values[0, 3] = 9.0
    found = round_blocks(values, BLOCK_FORMATS["nvfp4"])
    assert found[0, 3] == 9.0  # the largest number of the tensor: 6 * 448 * the tensor's scale
    tensor = 9.0 / (6 * 448)
    scales = np.abs(values[:, :16]).max(1) / 6 / tensor
    kept = scales.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * tensor
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for row, scale, answer in zip(values[:, :16], kept, found[:, :16], strict=True):
        nearest = grid[np.abs(np.abs(row / scale)[:, None] - grid).argmin(1)]
        np.testing.assert_allclose(answer, np.sign(row) * nearest * scale, rtol=1e-6)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_blocks_hide_no_inf_or_nan(name, bad):
    values = np.ones((2, 64), np.float32)
    values[0, 1] = bad
    found = round_blocks(values, BLOCK_FORMATS[name])
    assert np.isnan(found[0, :16]).all()
    if BLOCK_FORMATS[name].scale == "e8m0":
        np.testing.assert_array_equal(found[1], values[1])


def test_int8_blocks_are_whole_numbers_of_a_127th_of_their_largest():
    values = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    values[1, :32] = 0
    found = round_blocks(values, BLOCK_FORMATS["int8"])
    for row, answer in zip(values, found, strict=True):
        for block, mine in ((row[:32], answer[:32]), (row[32:], answer[32:])):
            step = np.abs(block).astype(np.float64).max() / 127 or 1.0
            np.testing.assert_allclose(mine, np.rint(block / step) * step, rtol=1e-6)


def tile_oracle(values, high, wide):
    """Tiles scaled by powers of two and cast by ml_dtypes."""
    out = np.zeros_like(values)
    for top in range(0, values.shape[0], high):
        for left in range(0, values.shape[1], wide):
            tile = values[top : top + high, left : left + wide].astype(np.float64)
            scale = 2.0 ** np.floor(np.log2(448.0 / np.abs(tile).max()))
            cast = (tile * scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
            out[top : top + high, left : left + wide] = cast.astype(np.float64) / scale
    return out


@pytest.mark.parametrize(
    ("scaling", "square", "high", "wide"),
    [("rowwise", False, 1, 300), ("block128", False, 1, 128), ("block128", True, 128, 128)],
)  # fmt: skip
def test_operands_of_finer_scales(scaling, square, high, wide):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(140, 300)) * np.exp2(rng.integers(-9, 9, (140, 1)))).astype(np.float32)
    found, inverse = round_operand(values, FLOAT_FORMATS["float8_e4m3fn"], scaling, square=square)
    assert inverse == 1
    np.testing.assert_array_equal(found, tile_oracle(values, high, wide))


@pytest.mark.parametrize(
    ("scaling", "square", "high", "wide"),
    [("row", False, 1, 300), ("row", True, 1, 300), ("block128", False, 1, 128), ("block128", True, 128, 128)],
)
def test_values_that_a_forecast_counts_are_times_the_scales_of_their_blocks(scaling, square, high, wide):
    values = np.random.default_rng(0).normal(size=(140, 300)).astype(np.float32) * np.float32([[1.0], [2.0**-9]] * 70)
    found = scale_values(values, scaling, square)
    for top in range(0, len(values), high):
        for left in range(0, 300, wide):
            tile = values[top : top + high, left : left + wide]
            scale = 2.0 ** np.floor(np.log2(448.0 / np.abs(tile).max()))
            np.testing.assert_array_equal(found[top : top + high, left : left + wide], tile * scale)


@pytest.mark.parametrize("scaling", ["tensorwise", "delayed", "rowwise", "block128", "mxfp8_e4m3", "nvfp4", "int8"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_operands_hide_no_inf_or_nan(scaling, bad):
    values = np.ones((4, 256), np.float32)
    values[1, 3] = bad
    known = np.float32(8) if scaling == "delayed" else None
    found, inverse = round_operand(values, FLOAT_FORMATS["float8_e4m3fn"], scaling, scale=known)
    with np.errstate(invalid="ignore"):
        assert np.isnan((found * inverse) @ np.ones(256, np.float32))[1]
    zeros, inverse = round_operand(np.zeros((4, 256)), FLOAT_FORMATS["float8_e4m3fn"], scaling, scale=known)
    assert not (zeros * inverse).any()


def test_a_known_scale_saturates():
    values = np.array([[1.0, -3.0, 1000.0, 0.3]], np.float32)
    found, inverse = round_operand(values, FLOAT_FORMATS["float8_e4m3fn"], "delayed", scale=np.float32(64))
    assert (found * inverse).tolist() == [[1.0, -3.0, 7.0, 0.3125]]
