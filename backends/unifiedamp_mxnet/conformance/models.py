# mypy: disallow-subclassing-any=False, warn-return-any=False
"""Plain Gluon models for the conformance suite, for both versions of MXNet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._types import Array, Block, HostArray, Symbol
from ..mxnet_api import NUMPY_API, from_numpy, gluon, mx

nn = gluon.nn


def native(values: object) -> Array:
    """Return numbers as a float32 array."""
    return from_numpy(np.asarray(values, np.float32), mx.cpu())


def initialized(block: Any) -> Any:
    """Initialize a block; return it."""
    block.initialize()
    return block


class Probe(gluon.HybridBlock):
    """sum(w_i * x_i), see ``Harness.probe``."""

    def __init__(self, values: Sequence[float], wide: bool = False) -> None:
        super().__init__()
        self.count, self.wide = len(values), wide
        for i, value in enumerate(values):
            init, dtype = mx.init.Constant(float(value)), "float64" if wide and i % 2 else "float32"
            name = f"w{i}"
            if NUMPY_API:
                setattr(self, name, gluon.Parameter(name, shape=(1,), init=init, dtype=dtype))
            else:
                setattr(self, name, self.params.get(name, shape=(1,), init=init, dtype=dtype))

    if NUMPY_API:

        def forward(self, x: Array) -> Array:
            weights = [getattr(self, f"w{i}").data(x.device) for i in range(self.count)]
            joined = mx.np.concatenate([w.astype("float32") for w in weights] if self.wide else weights)
            return (joined * x).sum()

    else:

        def hybrid_forward(self, F: Any, x: Symbol, **weights: Any) -> Symbol:
            parts = [weights[f"w{i}"] for i in range(self.count)]
            joined = F.concat(*[part.astype("float32") for part in parts] if self.wide else parts, dim=0)
            return F.sum(joined * x)


class Picked(gluon.HybridBlock):
    """The sum of the rows picked, of a table whose gradient is ``row_sparse``."""

    def __init__(self, table: HostArray) -> None:
        super().__init__()
        self.table = nn.Embedding(*table.shape, sparse_grad=True)
        self.table.initialize()
        self.table.weight.set_data(native(table))

    def hybrid_forward(self, F: Any, rows: Symbol) -> Symbol:
        return F.sum(self.table(rows))


class Attention(gluon.HybridBlock):
    """Self-attention without biases, by ``batch_dot``."""

    def __init__(self, projections: Sequence[HostArray], heads: int) -> None:
        super().__init__()
        self.heads, self.factor = heads, (heads / len(projections[0])) ** 0.5
        for name, weight in zip(("query", "key", "value", "output"), projections, strict=True):
            layer = nn.Dense(weight.shape[1], use_bias=False, flatten=False, in_units=weight.shape[0])
            layer.initialize()
            layer.weight.set_data(native(weight.T))
            setattr(self, name, layer)

    if NUMPY_API:

        def forward(self, x: Array) -> Array:
            (rows, length, width), heads = x.shape, self.heads

            def split(values: Any) -> Any:
                parts = values.reshape((rows, length, heads, width // heads)).transpose((0, 2, 1, 3))
                return parts.reshape((rows * heads, length, width // heads))

            query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
            scores = mx.npx.batch_dot(query, key, transpose_b=True) * self.factor
            attended = mx.npx.batch_dot(mx.npx.softmax(scores, axis=-1), value)
            joined = attended.reshape((rows, heads, length, width // heads)).transpose((0, 2, 1, 3))
            return self.output(joined.reshape((rows, length, width)))

    else:

        def hybrid_forward(self, F: Any, x: Symbol) -> Symbol:
            def split(values: Symbol) -> Symbol:
                parts = F.transpose(F.reshape(values, (0, 0, -4, self.heads, -1)), (0, 2, 1, 3))
                return F.reshape(parts, (-3, 0, 0))

            query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
            scores = F.batch_dot(query, key, transpose_b=True) * self.factor
            attended = F.batch_dot(F.softmax(scores, axis=-1), value)
            joined = F.transpose(F.reshape(attended, (-4, -1, self.heads, 0, 0)), (0, 2, 1, 3))
            return self.output(F.reshape(joined, (0, 0, -3)))


class Structured(gluon.HybridBlock):
    """A dense layer's output, and a list of twice that and the place of each row's largest."""

    def __init__(self, layer: Block) -> None:
        super().__init__()
        self.dense = layer

    if NUMPY_API:

        def forward(self, x: Array) -> Any:
            output: Any = self.dense(x)
            return output, [2 * output, output.astype("float32").argmax(-1).astype("int32")]

    else:

        def hybrid_forward(self, F: Any, x: Symbol) -> Any:
            output = self.dense(x)
            return output, [2 * output, F.argmax(output.astype("float32"), axis=-1).astype("int32")]


class Residual(gluon.HybridBlock):
    """A dense layer's output plus its input."""

    def __init__(self, layer: Block) -> None:
        super().__init__()
        self.dense = layer

    if NUMPY_API:

        def forward(self, x: Array) -> Array:
            return self.dense(x) + x

    else:

        def hybrid_forward(self, F: Any, x: Symbol) -> Symbol:
            return self.dense(x) + x


class Doubled(NamedTuple):
    """Twice an output, and the place of each row's largest."""

    double: Array
    place: Array


class Mapped(gluon.Block):
    """A dense layer's output in a dict, with a named tuple: graphs return lists alone, so it is not hybrid."""

    def __init__(self, layer: Block) -> None:
        super().__init__()
        self.dense = layer

    def forward(self, x: Array) -> Any:
        output: Any = self.dense(x)
        place = output.astype("float32").argmax(axis=-1).astype("int32")
        return OrderedDict(output=output, pair=Doubled(2 * output, place))


class Ratio(gluon.HybridBlock):
    """Divides each row by the sum of its absolute values."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    if NUMPY_API:

        def forward(self, x: Array) -> Array:
            return x / (mx.np.abs(x).sum(-1, keepdims=True) + self.epsilon)

    else:

        def hybrid_forward(self, F: Any, x: Symbol) -> Symbol:
            return F.broadcast_div(x, F.sum(F.abs(x), axis=-1, keepdims=True) + self.epsilon)


def dense(weight: HostArray, bias: HostArray, hidden: bool) -> Any:
    """Return a dense layer with these weights (inputs, outputs); ``hidden`` adds ReLU."""
    layer = nn.Dense(weight.shape[1], activation="relu" if hidden else None, in_units=weight.shape[0])
    layer.initialize()
    layer.weight.set_data(native(weight.T))
    layer.bias.set_data(native(bias))
    return layer


def named(layers: Mapping[str, Block]) -> Any:
    """Return layers one after the other as one hybrid block whose children have these names."""

    class Named(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.order = list(layers)
            for name, layer in layers.items():
                setattr(self, name, layer)

        if NUMPY_API:

            def forward(self, x: Array) -> Array:
                for name in self.order:
                    x = getattr(self, name)(x)
                return x

        else:

            def hybrid_forward(self, F: Any, x: Symbol) -> Symbol:
                for name in self.order:
                    x = getattr(self, name)(x)
                return x

    return Named()
