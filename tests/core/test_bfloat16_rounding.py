"""Rounding float32 to bfloat16 as ``Policy.update`` does: to the nearest, with a compensation, at random."""

import numpy as np
import pytest

from unifiedamp.backend import rounding

KEYS = rounding.param_key("layer.weight"), rounding.step_key(0, 3)


def samples():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    found = bits.view(np.float32)
    # Kahan's sum is exact where the compensation is no subnormal number.
    return found[np.isfinite(found) & (np.abs(found) > 1e-30) & (np.abs(found) < 1e38)]


def test_the_nearest_is_no_farther_than_any_neighbour():
    values = samples()
    found = rounding.nearest(values)
    assert not (found.view(np.uint32) & 0xFFFF).any()
    step = 2.0 ** (np.frexp(values.astype(np.float64))[1] - 8)
    assert (np.abs(found.astype(np.float64) - values) <= step / 2).all()
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
    assert rounding.nearest(ties).tolist() == [1.0, 1 + 2.0**-6]


def test_weight_and_compensation_split_again_into_themselves():
    values = samples()
    weight, rest = rounding.kahan_split(values)
    total = weight + rest
    assert (total.astype(np.float64) == weight.astype(np.float64) + rest).all()
    again = rounding.kahan_split(total)
    assert (again[0] == weight).all()
    assert (again[1] == rest).all()
    step = 2.0 ** (np.frexp(values.astype(np.float64))[1] - 8)
    assert (np.abs(total.astype(np.float64) - values) <= step * 2.0**-9).all()


def test_random_rounding_takes_a_neighbour_and_is_unbiased():
    values = np.repeat(np.float32([1.0, 1 + 2.0**-9, -3 - 2.0**-8, 1 + 2.0**-12]), 50_000).reshape(4, -1)
    found = rounding.stochastic(values, *KEYS).astype(np.float64)
    exact, step = values.astype(np.float64), np.array([[1.0], [1.0], [2.0], [1.0]]) * 2.0**-7
    assert (found[0] == 1.0).all()
    assert (np.abs(found - exact) < step).all()
    share = np.abs(found - np.trunc(exact / step) * step).mean(axis=1) / step[:, 0]
    assert share == pytest.approx([0.0, 0.25, 0.25, 2.0**-5], abs=0.01)


def test_random_numbers_differ_by_parameter_and_step():
    names = [rounding.param_key(name) for name in ("a", "b")]
    steps = [rounding.step_key(seed, step) for seed in (0, 1) for step in (0, 1)]
    found = np.stack([rounding.noise(4096, name, step) for name in names for step in steps])
    between = np.corrcoef(found.astype(np.float64))
    assert np.abs(between - np.eye(len(found))).max() < 0.08
    assert found.min() >= 0
    assert found.max() < 2**16
    assert found.mean() == pytest.approx(2**15, rel=0.02)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays(value):
    values = np.float32([value, 1.0])
    weight, rest = rounding.kahan_split(values)
    found = rounding.stochastic(values, *KEYS)
    assert np.array_equal([weight[0], found[0]], [value, value], equal_nan=True)
    assert rest[0] == 0
