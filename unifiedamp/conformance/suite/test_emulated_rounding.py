"""Emulated 16-bit operands, bit for bit: every pattern of 16 bits, random float32 numbers, and golden vectors."""

import importlib.resources
import json

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

pytestmark = pytest.mark.needs("emulation")

GOLDEN = json.loads(
    importlib.resources.files("unifiedamp.conformance").joinpath("vectors", "rounding", "formats.json").read_text()
)
DTYPES = ["float16", "bfloat16"]


def of_bits(texts):
    return np.array([int(text, 16) for text in texts], np.uint32).view(np.float32)


def patterns():
    """All float16 and bfloat16 numbers, and random bits of float32, but for subnormal float32 numbers.

    A framework may take those for zeros.
    """
    every = np.arange(2**16, dtype=np.uint16)
    random = np.random.default_rng(0).integers(0, 2**32, 2**15, np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        values = np.concatenate([every.view(np.float16), (every.astype(np.uint32) << 16).view(np.float32), random])
    return values[~(np.abs(values) < 2.0**-126) | (values == 0)]


def called(harness, form, dtype, weight, x):
    """What a dense layer without a bias gives, of shape (rows, outputs)."""
    try:
        amp = session(harness, form, ua.Policy.parse(f"mixed_{dtype};emulate=true"))
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    with amp.scope():
        model = harness.mlp([(np.float32(weight), np.zeros(np.shape(weight)[1], np.float32))])
    model = amp.prepare(model)
    call = compiled(amp, form, lambda x: model(x))
    with amp.inference(model), amp.autocast():
        found = np.asarray(amp.to_numpy(call(amp.to_native(np.float32(x)))), np.float32)
    amp.close()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pattern_is_rounded(harness, form, dtype):
    """Inf, nan and what overflows too."""
    for values, expected in (
        (patterns(), round_to(patterns(), FLOAT_FORMATS[dtype])),
        (of_bits(GOLDEN["inputs"]), of_bits(GOLDEN["rounded"][dtype])),
    ):
        found = called(harness, form, dtype, [[1.0]], values[:, None])
        np.testing.assert_array_equal(found[:, 0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_operand_is_rounded(harness, form, dtype):
    """Not only the result: a number less what is left of it is 0, as input and as weight."""
    values = patterns()
    left = round_to(values, FLOAT_FORMATS[dtype])
    both = np.stack([values, left], 1)[np.isfinite(left)]
    assert np.any(both[:, 0] != both[:, 1])
    assert not called(harness, form, dtype, [[1.0], [-1.0]], both).any()
    assert not called(harness, form, dtype, both.T, [[1.0, -1.0]]).any()
