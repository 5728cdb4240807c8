"""One call of each operation of the vocabulary, for both versions of MXNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .._types import Array
from ..mxnet_api import NUMPY_API, mx
from .models import native

_KERNEL = np.full((4, 1, 3, 3), 0.1, np.float32)


def _images(x: Array) -> Array:
    return x.reshape((1, 1, 8, 8))


if NUMPY_API:
    N = mx.npx
    OPERATIONS: Mapping[str, Callable[..., Array]] = {
        "matmul": lambda x: mx.np.matmul(x, x),
        "linear": lambda x: N.fully_connected(x, x, no_bias=True, num_hidden=8),
        "conv": lambda x: N.convolution(_images(x), native(_KERNEL), kernel=(3, 3), num_filter=4, no_bias=True),
        "softmax": N.softmax,
        "log_softmax": N.log_softmax,
        "layer_norm": lambda x: N.layer_norm(x, x[0], x[0]),
        "relu": N.relu,
        "gelu": lambda x: N.leaky_relu(x, act_type="gelu"),
        "sigmoid": N.sigmoid,
        "tanh": lambda x: N.activation(x, act_type="tanh"),
        "softplus": lambda x: N.activation(x, act_type="softrelu"),
        "exp": mx.np.exp,
        "log": mx.np.log,
        "pow": lambda x: mx.np.power(x, x),
        "sum": mx.np.sum,
        "mean": mx.np.mean,
        "prod": mx.np.prod,
        "cumsum": mx.np.cumsum,
    }
else:
    OPERATIONS = {
        "matmul": lambda x: mx.nd.dot(x, x),
        "linear": lambda x: mx.nd.FullyConnected(x, x, no_bias=True, num_hidden=8),
        "conv": lambda x: mx.nd.Convolution(_images(x), native(_KERNEL), kernel=(3, 3), num_filter=4, no_bias=True),
        "softmax": mx.nd.softmax,
        "log_softmax": mx.nd.log_softmax,
        "layer_norm": lambda x: mx.nd.LayerNorm(x, x[0], x[0]),
        "relu": mx.nd.relu,
        "gelu": lambda x: mx.nd.LeakyReLU(x, act_type="gelu"),
        "sigmoid": mx.nd.sigmoid,
        "tanh": mx.nd.tanh,
        "softplus": lambda x: mx.nd.Activation(x, act_type="softrelu"),
        "exp": mx.nd.exp,
        "log": mx.nd.log,
        "pow": lambda x: x**x,
        "sum": mx.nd.sum,
        "mean": mx.nd.mean,
        "prod": mx.nd.prod,
        "norm": mx.nd.norm,
    }

OF_TWO: Mapping[str, Callable[[Array, Array], Array]] = {
    "linear": (lambda x, y: N.fully_connected(x, y, no_bias=True, num_hidden=8))
    if NUMPY_API
    else (lambda x, y: mx.nd.FullyConnected(x, y, no_bias=True, num_hidden=8))
}
"""The same, on two inputs."""


def sample() -> Array:
    """Return the input that each operation takes."""
    return native(np.linspace(0.1, 1.0, 64).reshape(8, 8))
