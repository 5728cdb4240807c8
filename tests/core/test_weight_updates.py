"""``Policy.update``: its text, what is refused, and the reference of its rounding."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import rounding


@pytest.mark.parametrize(
    "text", ["bfloat16;update=kahan", "bfloat16;update=stochastic;state_dtype=float8;update_seed=7"]
)
def test_text_reads_back(text):
    assert str(ua.Policy.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed_bfloat16;update=kahan", "param_dtype is float32"),
        ("bfloat16;update=kahn", "did you mean 'kahan'"),
        ("bfloat16;state_dtype=float8", "add update='stochastic'"),
        ("bfloat16;update=kahan;update_seed=3", "no effect without update='stochastic'"),
    ],
)
def test_what_contradicts_itself_is_refused(text, message):
    with pytest.raises(ua.PolicyError, match=message):
        ua.Policy.parse(text)


def test_stochastic_rounding_is_right_on_average():
    value = np.float32(1.0 + 0.3 * 2.0**-7)
    found = rounding.stochastic(np.full(2**20, value), rounding.param_key("w"), rounding.step_key(0, 5))
    assert set(found.tolist()) == {1.0, 1.0 + 2.0**-7}
    deviation = 2.0**-7 * np.sqrt(0.3 * 0.7 / 2**20)
    assert abs(np.mean(found, dtype=np.float64) - np.float64(value)) < 5 * deviation


def test_a_split_sum_splits_again():
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    weight, rest = rounding.kahan_split(values)
    again = rounding.kahan_split(weight + rest)
    np.testing.assert_array_equal(again, (weight, rest))
    assert np.max(np.abs((weight.astype(np.float64) + rest - values) / values)) <= 2.0**-17
