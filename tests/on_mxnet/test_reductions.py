"""Counting and largest values: what a device does by operators is what numpy does on the host."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend.recording import EDGE_BITS
from unifiedamp_mxnet.mxnet_api import from_numpy, mx
from unifiedamp_mxnet.recording import reductions


def values():
    rng = np.random.default_rng(0)
    powers = np.float32(2.0) ** np.arange(-110, 128, dtype=np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65505.0, 65536.0, 3e38, -1.0]
    spread = rng.standard_normal(5000) * 10.0 ** rng.uniform(-30, 30, 5000)
    with np.errstate(over="ignore"):
        return np.concatenate([special, powers, np.nextafter(powers[1:], np.float32(0)), spread]).astype(np.float32)


def expected(array):
    """By the definition: how many edges are not above a value's bits."""
    bits = array.reshape(-1).view(np.int32) & 0x7FFFFFFF
    return np.bincount(np.searchsorted(np.array(EDGE_BITS), bits, side="right"), minlength=len(EDGE_BITS) + 1)


@pytest.mark.parametrize("together", [1, 2**20])
@pytest.mark.parametrize("count", [reductions.count_on_device, reductions.count_on_host])
def test_counts(monkeypatch, count, together):
    ua.Amp("mxnet", "float32")
    monkeypatch.setattr(reductions, "HOST_CHUNK", together)
    gradients = [values(), np.float32([[4.0, 0.0], [np.nan, 2.0**-20]]), np.float16([3.0, 2.0**-24, 1e-3])]
    arrays = [from_numpy(array, mx.cpu()) for array in gradients]
    with np.errstate(invalid="ignore"):
        wanted = [np.float32(array) / np.float32(scale) for array in gradients for scale in (1, 1024)]
    for told, array in zip(reductions.read(count(arrays, 1024.0)), wanted, strict=True):
        np.testing.assert_array_equal(told, expected(array))


@pytest.mark.parametrize(
    ("array", "largest"), [([-3.0, 2.0], 3.0), ([1.0, -np.inf], np.inf), ([np.nan, np.inf], np.nan)]
)
@pytest.mark.parametrize("on_host", [True, False])
def test_largest(monkeypatch, array, largest, on_host):
    monkeypatch.setattr(reductions, "_on_host", lambda _: on_host)
    (told,) = reductions.read([reductions.largest(from_numpy(np.float32(array), mx.cpu()), reductions.HostBuffer())])
    np.testing.assert_array_equal(told, [largest])


def test_largest_of_what_a_convolution_left_in_its_own_layout():
    """oneDNN keeps images in blocks of channels."""
    ua.Amp("mxnet", "float32")
    rng = np.random.default_rng(0)
    x, w = (from_numpy(np.float32(rng.standard_normal(size)), mx.cpu()) for size in ((4, 3, 9, 9), (20, 3, 3, 3)))
    layer = mx.gluon.nn.Conv2D(20, 3, in_channels=3, use_bias=False)
    layer.initialize(ctx=mx.cpu())
    layer.weight.set_data(w)
    found = layer(x)
    (told,) = reductions.read([reductions.largest(found, reductions.HostBuffer())])
    np.testing.assert_array_equal(told, [np.abs(found.asnumpy()).max()])
    np.testing.assert_array_equal(found.asnumpy(), layer(x).asnumpy())
