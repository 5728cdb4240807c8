"""The kit's own float8 rounding, against numpy's extension types where they are installed."""

import math

import numpy as np
import pytest

from unifiedamp.conformance import float8 as oracle

ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize(
    ("ours", "name"), [(oracle.E4M3, "float8_e4m3fn"), (oracle.E5M2, "float8_e5m2"), (oracle.BFLOAT16, "bfloat16")]
)
def test_rounding_is_that_of_the_format(ours, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):  # signalling nan
        codes = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    codes = codes[np.isfinite(codes)]
    between = (np.sort(codes)[1:] + np.sort(codes)[:-1]) / 2
    values = np.concatenate([codes, between, rng.choice(codes, 2000) * rng.uniform(0.5, 1.0, 2000), [0.0, -0.0]])
    values = values.astype(np.float32).astype(np.float64)  # which is what ml_dtypes rounds from
    np.testing.assert_array_equal(ours.round(values), values.astype(dtype).astype(np.float64))
    assert codes.max() == ours.largest
    assert math.isnan(ours.round(ours.largest * 1.2))


def test_a_scaled_tensor_reaches_the_largest_number():
    x = np.array([[0.3, -1e-3], [7.0, 2.0]])
    rounded, scale = oracle.E5M2.scaled(x)
    assert scale == 57344 / 7
    assert np.abs(rounded).max() == 57344
    assert oracle.E4M3.scaled(np.zeros((2, 2)))[1] == 1.0
