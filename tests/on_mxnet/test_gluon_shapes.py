"""The sizes of layers that the shared suite has no harness for."""

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import gluon

nn = gluon.nn


def sizes(*layers):
    block = nn.HybridSequential()
    block.add(*layers)
    found = ua.Amp("mxnet", "float32").backend.layer_shapes.matmul_shapes([block])
    return {shape.layer: (shape.kind, dict(shape.dimensions)) for shape in found}


def test_convolutions():
    assert sizes(
        nn.Conv2D(8, 3, groups=8, in_channels=8),
        nn.Conv2D(12, 3, groups=2, in_channels=8),
        nn.Conv2DTranspose(5, 3, in_channels=6),
        nn.Conv2D(4, 1, layout="NHWC", in_channels=3),
    ) == {
        "1": ("conv", {"input channels": 4, "output channels": 6}),
        "2": ("conv", {"input channels": 6, "output channels": 5}),
        "3": ("conv", {"input channels": 3, "output channels": 4}),
    }


def test_sizes_that_the_first_batch_tells_are_left_out():
    assert sizes(gluon.rnn.LSTM(6), nn.Dense(3)) == {"0": ("rnn", {"units": 6}), "1": ("linear", {"outputs": 3})}
