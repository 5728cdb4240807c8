"""Which sizes keep Tensor Cores idle, by layer."""

from itertools import pairwise

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.explain.shape_advice import advise

pytestmark = pytest.mark.needs("shape_advice")


def session_over(harness, model):
    amp = ua.Amp(harness.backend, "float32")
    with amp.scope():
        made = model()
    return amp, amp.prepare(made)


def mlp(harness, *sizes):
    weights = [(np.ones((a, b), np.float32), np.zeros(b, np.float32)) for a, b in pairwise(sizes)]
    return session_over(harness, lambda: harness.mlp(weights))


def rows(found):
    return [(row.layer, row.kind, row.dimension, row.size, row.padded) for row in found]


def test_sizes_that_fit_no_tile_are_named_with_the_padded_size(harness):
    amp, model = mlp(harness, 13, 32, 10)
    expected = [("layer0", "linear", "inputs", 13, 16), ("layer1", "linear", "outputs", 10, 16)]
    for dtype in ("float16", "bfloat16"):
        assert rows(advise(amp.backend, [model], dtype)) == expected


def test_float8_needs_sixteen_and_float32_nothing(harness):
    amp, model = mlp(harness, 24, 32)
    assert rows(advise(amp.backend, [model], "float8")) == [("layer0", "linear", "inputs", 24, 32)]
    assert advise(amp.backend, [model], "float16") == []
    assert advise(amp.backend, [mlp(harness, 13, 7)[1]], "float32", batch_size=3) == []


def test_the_batch_size_counts_too(harness):
    amp, model = mlp(harness, 8, 8)
    assert rows(advise(amp.backend, [model], "float16", batch_size=50)) == [("(batch)", "batch", "batch size", 50, 56)]
    assert advise(amp.backend, [model], "float16", batch_size=64) == []


def test_convolutions_by_their_channels(harness):
    amp, model = session_over(harness, lambda: harness.convnet(0))
    found = rows(advise(amp.backend, [model], "bfloat16"))
    assert ("conv", "conv", "input channels", 1, 8) in found
    assert ("head", "linear", "outputs", 10, 16) in found
    assert len(found) == 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("depthwise", []),
        ("transposed", [("conv", "input channels", 10, 16), ("conv", "output channels", 12, 16)]),
        ("recurrent", [("rnn", "inputs", 13, 16), ("rnn", "units", 7, 8)]),
    ],
)
def test_layers_of_other_kinds(harness, kind, expected):
    """No padding makes a depthwise convolution fit."""
    amp, model = session_over(harness, lambda: harness.sized(kind))
    assert [row[1:] for row in rows(advise(amp.backend, [model], "float16"))] == expected


@pytest.mark.parametrize("kind", ["late convolution", "late transposed"])
def test_sizes_that_the_first_batch_determines(harness, kind):
    """Before it they are left out; after it they are those of a layer that was made with them."""
    expected = [("conv", "input channels", 10, 16), ("conv", "output channels", 12, 16)]
    amp, model = session_over(harness, lambda: harness.sized(kind))
    assert [row[1:] for row in rows(advise(amp.backend, [model], "float16"))] in ([], expected[1:])
    x = amp.to_native(np.ones((2, 8, 8, 10), np.float32))
    with amp.inference(model):
        model(amp.to_native(harness.image_batch(amp.to_numpy(x))))
    assert [row[1:] for row in rows(advise(amp.backend, [model], "float16"))] == expected
