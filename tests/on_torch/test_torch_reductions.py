"""Counting and largest values, whatever the layout, and however many gradients are counted at a time."""

import numpy as np
import pytest
import torch

from unifiedamp.backend.recording import BUCKETS, EDGE_BITS
from unifiedamp_torch.recording import reductions


def spread(*shape, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-30, 30, shape)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65505.0, 65536.0, 2.0**-24, 1e-45]
    values.reshape(-1)[: len(special)] = special[: values.size]
    return torch.from_numpy(values).float()


def expected(tensor):
    """By the definition: how many edges are not above a value's bits."""
    bits = np.abs(tensor.float().numpy().reshape(-1)).view(np.int32)
    return np.bincount(np.searchsorted(np.array(EDGE_BITS), bits, side="right"), minlength=BUCKETS)


LAYOUTS = {
    "plain": lambda: spread(3, 4, 5, 6),
    "channels last": lambda: spread(3, 4, 5, 6).to(memory_format=torch.channels_last),
    "transposed": lambda: spread(20, 30).t(),
    "with gaps": lambda: spread(20, 30)[::2, 3:20],
    "repeated": lambda: spread(1, 30).expand(7, 30),
    "one number": lambda: spread(1)[0],
}


@pytest.mark.parametrize("together", [1, 700, 2**20])
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_counts(monkeypatch, together, scale):
    monkeypatch.setattr(reductions, "TOGETHER", together)
    gradients = [make() for make in LAYOUTS.values()]
    gradients += [torch.zeros(0), spread(40).bfloat16(), spread(50).half(), spread(60, seed=1)]
    inverse = None if scale is None else torch.tensor(1 / scale)
    scaled, true = zip(*reductions.count(gradients, inverse), strict=True)
    assert len(scaled) == {1: 9, 700: 7, 2**20: 4}[together]
    with np.errstate(all="ignore"):
        wanted = [expected(gradient) for gradient in gradients]
        divided = [expected(gradient.float() / (scale or 1.0)) for gradient in gradients]
    np.testing.assert_array_equal(torch.cat(scaled).reshape(-1, BUCKETS), wanted)
    np.testing.assert_array_equal(torch.cat(true).reshape(-1, BUCKETS), divided)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("odd", [None, np.inf, -np.inf, np.nan])
def test_largest(layout, odd):
    tensor = LAYOUTS[layout]().nan_to_num(1.0, -2.0, -3e38)
    if odd is not None:
        tensor[(-1,) * tensor.dim()] = odd
    told = reductions.largest(tensor)
    assert told.shape == ()
    np.testing.assert_array_equal(told, np.abs(tensor.numpy()).max())
