"""The sizes of layers that the shared suite has no harness for."""

import torch
from loops import session

from unifiedamp.explain.shape_advice import advise

nn = torch.nn


def sizes(*layers):
    found = session().backend.layer_shapes.matmul_shapes([nn.Sequential(*layers)])
    return {shape.layer: (shape.kind, dict(shape.dimensions)) for shape in found}


def test_layers_with_matrix_products():
    found = sizes(nn.LSTM(5, 6), nn.MultiheadAttention(30, 3), nn.Conv2d(8, 12, 3, groups=2), nn.ReLU())
    assert found == {
        "0": ("rnn", {"inputs": 5, "units": 6}),
        "1": ("attention", {"embedding": 30, "head size": 10}),
        "2": ("conv", {"input channels": 4, "output channels": 6}),
    }


def test_depthwise_and_lazy_layers_are_left_out():
    assert sizes(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(2, 4, 3, groups=2)) == {}
    assert sizes(nn.LazyLinear(3)) == {"0": ("linear", {"outputs": 3})}


def test_a_model_that_is_one_layer_is_named_by_its_class():
    (row,) = advise(session().backend, [nn.Linear(8, 10)], "float16")
    assert (row.layer, row.padded) == ("Linear", 16)
