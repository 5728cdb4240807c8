"""Plain Gluon objects for the conformance suite, for both versions of MXNet."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from unifiedamp.backend import LossScale, Policy
from unifiedamp.conformance.harness import Array, Harness

from ..capabilities import PRODUCTS
from ..device.versions import (
    NUMPY_API,
    autograd,
    cast,
    current_context,
    dtype_name,
    from_numpy,
    gluon,
    mx,
    nd_register,
    symbol_register,
)
from ..precision.layers import walk
from . import contexts as contexts

nn = gluon.nn
F = mx.np if NUMPY_API else mx.nd


def _array(values: Any) -> Any:
    return from_numpy(np.asarray(values, np.float32), mx.cpu())


class _Probe(gluon.HybridBlock):  # type: ignore[misc]
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

        def forward(self, x: Any) -> Any:
            weights = [getattr(self, f"w{i}").data(x.device) for i in range(self.count)]
            joined = mx.np.concatenate([w.astype("float32") for w in weights] if self.wide else weights)
            return (joined * x).sum()

    else:

        def hybrid_forward(self, F: Any, x: Any, **weights: Any) -> Any:
            parts = [weights[f"w{i}"] for i in range(self.count)]
            joined = F.concat(*[part.astype("float32") for part in parts] if self.wide else parts, dim=0)
            return F.sum(joined * x)


class _Picked(gluon.HybridBlock):  # type: ignore[misc]
    """The sum of the rows picked, of a table whose gradient is ``row_sparse``."""

    def __init__(self, table: Array) -> None:
        super().__init__()
        self.table = nn.Embedding(*table.shape, sparse_grad=True)
        self.table.initialize()
        self.table.weight.set_data(_array(table))

    def hybrid_forward(self, F: Any, rows: Any) -> Any:
        return F.sum(self.table(rows))


class _Ratio(gluon.HybridBlock):  # type: ignore[misc]
    """Divides each row by the sum of its absolute values."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    if NUMPY_API:

        def forward(self, x: Any) -> Any:
            return x / (mx.np.abs(x).sum(-1, keepdims=True) + self.epsilon)

    else:

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.broadcast_div(x, F.sum(F.abs(x), axis=-1, keepdims=True) + self.epsilon)


class MXNetHarness(Harness):
    """See ``Harness``."""

    backend = "mxnet"
    forms: Mapping[str, Mapping[str, Any]] = {"eager": {}, "compiled": {}, "max": {}}
    low_precision_op = "linear"
    # A CPU runs float16 where its matrix products need not.
    pure_policies = Harness.pure_policies | {
        "float16": Policy("float16", "float16", "float16", op_overrides=dict.fromkeys(PRODUCTS, "float32"))
    }

    def probe(self, values: Sequence[float]) -> Any:
        """See ``Harness``."""
        model = _Probe(values)
        model.initialize()
        return model

    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> Any:
        """See ``Harness``."""
        return _named(
            {f"layer{i}": _dense(weight, bias, i < len(weights) - 1) for i, (weight, bias) in enumerate(weights)}
        )

    def convnet(self, seed: int) -> Any:
        """See ``Harness``."""
        mx.random.seed(seed)
        layers = {"conv": nn.Conv2D(8, 3, padding=1, in_channels=1), "norm": nn.BatchNorm(in_channels=8)}
        layers |= {"relu": nn.Activation("relu"), "flatten": nn.Flatten(), "head": nn.Dense(10, in_units=512)}
        for layer in layers.values():
            layer.initialize(mx.init.Xavier())
        return _named(layers)

    def ratio(self, epsilon: float) -> Any:
        """See ``Harness``."""
        dense = nn.Dense(4, in_units=4)
        dense.initialize()
        return _named({"dense": dense, "ratio": _Ratio(epsilon)})

    def image_batch(self, array: Array) -> Array:
        """See ``Harness``."""
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))

    def sgd(self, models: Sequence[Any], learning_rate: float, momentum: float = 0.0) -> Any:
        """See ``Harness``."""
        return self._trainer(models, "sgd", learning_rate=learning_rate, momentum=momentum)

    def adam(self, models: Sequence[Any], learning_rate: float) -> Any:
        """See ``Harness``."""
        return self._trainer(models, "adam", learning_rate=learning_rate, epsilon=1e-8)

    def _trainer(self, models: Sequence[Any], optimizer: str, **settings: Any) -> Any:
        params = [p for model in models for p in model.collect_params().values()]
        return gluon.Trainer(params, optimizer, settings)

    def mean_square(self, output: Any, target: Any) -> Any:
        """See ``Harness``."""
        return F.square(output - target).mean()

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """See ``Harness``."""
        return gluon.loss.SoftmaxCrossEntropyLoss()(logits, labels).mean()

    def parameters(self, model: Any) -> dict[str, Array]:
        """See ``Harness``."""
        params = model._collect_params_with_prefix().items()
        return {name: p.data().asnumpy().astype(np.float64) for name, p in params if p.grad_req != "null"}

    def optimizer_steps(self, optimizer: Any) -> int:
        """See ``Harness``."""
        return int(optimizer.optimizer.num_update)

    def set_gradients(self, amp: Any, optimizer: Any, values: Mapping[str, Array]) -> None:
        """See ``Harness``."""
        gradients = amp.gradients(optimizer)
        for name, value in values.items():
            gradients[name][:] = _array(value)

    @contextmanager
    def interrupted_update(self, optimizer: Any, error: BaseException) -> Iterator[None]:
        """See ``Harness``."""
        updaters = optimizer._updaters

        def broken(indices: Any, gradients: Any, weights: Any) -> None:
            updaters[0](indices[:1], gradients[:1], weights[:1])
            raise error

        optimizer._updaters = [broken] * len(updaters)
        try:
            yield
        finally:
            optimizer._updaters = updaters

    def native_backward(self, loss: Any) -> bool:
        """See ``Harness``; MXNet itself refuses a second pass through a graph, and one through no graph."""
        try:
            loss.backward()
        except mx.base.MXNetError:
            return False
        return True

    def native_step(self, optimizer: Any) -> bool:
        """See ``Harness``."""
        optimizer.step(1)
        return True

    def run_op(self, op: str) -> str | None:
        """See ``Harness``."""
        run = _OPS.get(op)
        if run is None:
            return None
        x = _array(np.linspace(0.1, 1.0, 64).reshape(8, 8))
        output = run(x)
        return dtype_name(output)

    def global_state(self) -> Any:
        """See ``Harness``."""
        classes = (gluon.HybridBlock, gluon.Block, importlib.import_module("mxnet._ffi.function").Function)
        modules = [mx.nd, mx.sym, mx.np, mx.npx, mx.nd.op, mx.sym.op, mx.nd._internal, mx.sym._internal, nd_register,
                   symbol_register, mx.nd.contrib, mx.sym.contrib]  # fmt: skip
        attributes = tuple((id(m), name, id(value)) for m in modules for name, value in sorted(vars(m).items()))
        methods = tuple((name, id(value)) for cls in classes for name, value in sorted(vars(cls).items()))
        flags = (autograd.is_recording(), autograd.is_training(), str(current_context()))
        code = id(gluon.HybridBlock._call_cached_op.__code__)
        semantics = (mx.util.is_np_array(), mx.util.is_np_shape())
        return (attributes, methods, code, flags, semantics, tuple(sorted(vars(np))))

    def dtype_of(self, tensor: Any) -> str:
        """See ``Harness``."""
        return dtype_name(tensor)

    def set_trainable(self, model: Any, layer: str, trainable: bool) -> None:
        """See ``Harness``."""
        for name, param in model._collect_params_with_prefix().items():
            if name.startswith(f"{layer}."):
                param.grad_req = "write" if trainable else "null"

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        """See ``Harness``; the gradients of two contexts are summed, as Gluon does."""
        weights, skipped = contexts.step(lambda: _Probe([1.0]), [(value,) for value in gradients], loss_scale)
        return [(weight, skipped) for (weight,) in weights]

    # -- optional ------------------------------------------------------------------------------------------------

    def grouped_sgd(self, model: Any, learning_rates: Sequence[float]) -> Any:
        """See ``Harness``; parameters have a factor of the learning rate each."""
        params = list(model.collect_params().values())
        for param, rate in zip(params, learning_rates, strict=True):
            param.lr_mult = rate
        return gluon.Trainer(params, "sgd", {"learning_rate": 1.0})

    def decaying_sgd(self, model: Any, learning_rate: float, weight_decay: float) -> Any:
        """See ``Harness``."""
        return self._trainer([model], "sgd", learning_rate=learning_rate, wd=weight_decay)

    def rescaled_sgd(self, model: Any, learning_rate: float, factor: float) -> Any:
        """See ``Harness``."""
        return self._trainer([model], "sgd", learning_rate=learning_rate, rescale_grad=factor)

    def sparse(self, table: Array, learning_rate: float) -> tuple[Any, Any]:
        """See ``Harness``."""
        if NUMPY_API:
            self._lacks("sparse gradients: MXNet 2's numpy arrays are dense")
        model = _Picked(table)
        return model, self.sgd([model], learning_rate)

    def wide_probe(self, values: Sequence[float]) -> Any:
        """See ``Harness``."""
        model = _Probe(values, wide=True)
        model.initialize()
        return model

    def cast(self, tensor: Any, dtype: str) -> Any:
        """See ``Harness``."""
        # MXNet 2's bfloat16 has no arrays without dimensions (oneDNN).
        return cast(tensor if tensor.shape else tensor.reshape((1,)), dtype)

    def layer_norm(self, size: int) -> Any:
        """See ``Harness``."""
        layers = {"dense": nn.Dense(size, in_units=size), "norm": nn.LayerNorm(in_channels=size)}
        for layer in layers.values():
            layer.initialize()
        return _named(layers)

    @contextmanager
    def other_state(self) -> Iterator[None]:
        """See ``Harness``."""
        with mx.cpu(1), autograd.train_mode():
            yield

    def clipped_device_run(
        self, gradients: Sequence[tuple[float, float]], max_norm: float, loss_scale: LossScale
    ) -> list[list[float]]:
        """See ``Harness``."""
        return contexts.step(lambda: _Probe([1.0, 1.0]), gradients, loss_scale, max_norm)[0]

    def device_steps(
        self,
        policy: str | Policy,
        gradients: Sequence[Sequence[float | None]],
        loss_scale: LossScale,
        clip_value: float | None = None,
    ) -> list[tuple[float, float]]:
        """See ``Harness``."""
        policy = Policy.parse(policy) if isinstance(policy, str) else policy
        return contexts.steps(lambda: _Probe([1.0]), policy, gradients, loss_scale, clip_value)

    def attached(self, obj: Any) -> Any:
        """See ``Harness``."""
        if not isinstance(obj, gluon.Block):
            names = [name for name in vars(obj) if "amp" in name]
            own = obj._optimizer
            return names, [param.grad_req for param in obj._params], sorted(vars(own)), own.rescale_grad
        return [(path, type(block), sorted(vars(block)), _hooks(block)) for path, block in walk(obj)]


def _hooks(block: Any) -> list[int]:
    return [len(getattr(block, name)) for name in ("_forward_hooks", "_forward_pre_hooks")]


def _dense(weight: Array, bias: Array, hidden: bool) -> Any:
    layer = nn.Dense(weight.shape[1], activation="relu" if hidden else None, in_units=weight.shape[0])
    layer.initialize()
    layer.weight.set_data(_array(weight.T))
    layer.bias.set_data(_array(bias))
    return layer


def _named(layers: Mapping[str, Any]) -> Any:
    """Return layers one after the other as one hybrid block whose children have these names."""

    class Named(gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer)

        if NUMPY_API:

            def forward(self, x: Any) -> Any:
                for name in layers:
                    x = getattr(self, name)(x)
                return x

        else:

            def hybrid_forward(self, F: Any, x: Any) -> Any:
                for name in layers:
                    x = getattr(self, name)(x)
                return x

    return Named()


_kernel = np.full((4, 1, 3, 3), 0.1, np.float32)


def _images(x: Any) -> Any:
    return x.reshape((1, 1, 8, 8))


if NUMPY_API:
    N = mx.npx
    _OPS: dict[str, Any] = {
        "matmul": lambda x: mx.np.matmul(x, x),
        "linear": lambda x: N.fully_connected(x, x, no_bias=True, num_hidden=8),
        "conv": lambda x: N.convolution(_images(x), _array(_kernel), kernel=(3, 3), num_filter=4, no_bias=True),
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
    _OPS = {
        "matmul": lambda x: mx.nd.dot(x, x),
        "linear": lambda x: mx.nd.FullyConnected(x, x, no_bias=True, num_hidden=8),
        "conv": lambda x: mx.nd.Convolution(_images(x), _array(_kernel), kernel=(3, 3), num_filter=4, no_bias=True),
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

harness = MXNetHarness()
