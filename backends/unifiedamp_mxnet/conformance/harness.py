"""The conformance suite's harness: plain Gluon, for both versions of MXNet."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unifiedamp.backend import LossScale, Policy
from unifiedamp.conformance.harness import Array, Harness
from unifiedamp.conformance.ranks import Answers, RankCase, RankKind

from .._types import Array as NativeArray
from .._types import Block, Trainer
from ..device.arrays import to_numpy
from ..layer_paths import named_parameters, walk
from ..mxnet_api import (
    NUMPY_API,
    autograd,
    cast,
    current_context,
    dtype_name,
    gluon,
    mx,
    nd_register,
    symbol_register,
)
from ..precision.operations import PRODUCTS
from . import contexts
from .changed_models import cast_model, put_layer
from .models import Attention, Mapped, Picked, Probe, Ratio, Residual, Structured, dense, initialized, named, native
from .operations import OF_TWO, OPERATIONS, sample
from .optimizers import BrokenUpdater, Listed
from .ranks import KINDS, run_on_ranks

nn = gluon.nn
F = mx.np if NUMPY_API else mx.nd


class MXNetHarness(Harness):
    """Gluon's means."""

    backend = "mxnet"
    forms: Mapping[str, Mapping[str, Any]] = {"eager": {}, "compiled": {}, "max": {}}
    low_precision_op = "linear"
    masters_follow_parameters = False
    float8_emulation: Mapping[str, Any] = {"emulate": True}
    rank_kinds: Mapping[str, RankKind] = KINDS
    # A CPU runs float16 where its matrix products need not.
    pure_policies: Mapping[str, str | Policy] = {
        **Harness.pure_policies,
        "float16": Policy("float16", "float16", "float16", op_overrides=dict.fromkeys(PRODUCTS, "float32")),
    }

    def probe(self, values: Sequence[float]) -> Any:
        return initialized(Probe(values))

    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> Any:
        return named(
            {f"layer{i}": dense(weight, bias, i < len(weights) - 1) for i, (weight, bias) in enumerate(weights)}
        )

    def put_layer(self, model: Any, layer: str, weight: Array, bias: Array) -> Block:
        return put_layer(model, layer, dense(weight, bias, hidden=False))

    def cast_model(self, model: Any, dtype: str) -> None:
        cast_model(model, dtype)

    def convnet(self, seed: int) -> Any:
        mx.random.seed(seed)
        layers = {"conv": nn.Conv2D(8, 3, padding=1, in_channels=1), "norm": nn.BatchNorm(in_channels=8)}
        layers |= {"relu": nn.Activation("relu"), "flatten": nn.Flatten(), "head": nn.Dense(10, in_units=512)}
        for layer in layers.values():
            layer.initialize(mx.init.Xavier())
        return named(layers)

    def ratio(self, epsilon: float) -> Any:
        return named({"dense": initialized(nn.Dense(4, in_units=4)), "ratio": Ratio(epsilon)})

    def image_batch(self, array: Array) -> Array:
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))

    def sgd(self, models: Sequence[Block], learning_rate: float, momentum: float = 0.0) -> Any:
        return self._trainer(models, "sgd", learning_rate=learning_rate, momentum=momentum)

    def adam(self, models: Sequence[Block], learning_rate: float) -> Any:
        return self._trainer(models, "adam", learning_rate=learning_rate, epsilon=1e-8)

    def _trainer(self, models: Sequence[Block], optimizer: str, **settings: Any) -> Any:
        params = [p for model in models for p in model.collect_params().values()]
        return gluon.Trainer(params, optimizer, settings)

    def mean_square(self, output: NativeArray, target: NativeArray) -> Any:
        return F.square(output - target).mean()

    def cross_entropy(self, logits: NativeArray, labels: NativeArray) -> Any:
        return gluon.loss.SoftmaxCrossEntropyLoss()(logits, labels).mean()

    def parameters(self, model: Block) -> dict[str, Array]:
        params = named_parameters(model)
        return {name: to_numpy(p.data()).astype(np.float64) for name, p in params if p.grad_req != "null"}

    def set_parameters(self, model: Block, values: Mapping[str, Array]) -> None:
        params = dict(named_parameters(model))
        for name, value in values.items():
            params[name].set_data(native(value))

    def optimizer_steps(self, optimizer: Trainer) -> int:
        return int(optimizer.optimizer.num_update)

    def set_gradients(self, amp: Any, optimizer: Trainer, values: Mapping[str, Array]) -> None:
        gradients = amp.gradients(optimizer)
        for name, value in values.items():
            gradients[name][:] = native(value)

    @contextmanager
    def interrupted_update(self, optimizer: Trainer, error: BaseException) -> Iterator[None]:
        updaters = optimizer._updaters
        vars(optimizer)["_updaters"] = [BrokenUpdater(updaters[0], error)] * len(updaters)
        try:
            yield
        finally:
            optimizer._updaters = updaters

    def native_backward(self, loss: NativeArray) -> bool:
        try:
            loss.backward()
        except mx.base.MXNetError:
            return False
        return True

    def native_step(self, optimizer: Trainer) -> bool:
        optimizer.step(1)
        return True

    def run_op(self, op: str) -> str | None:
        run = OPERATIONS.get(op)
        if run is None:
            return None
        return _computed_in(run(sample()))

    def global_state(self) -> Any:
        classes = (gluon.HybridBlock, gluon.Block, importlib.import_module("mxnet._ffi.function").Function)
        modules = [mx.nd, mx.sym, mx.np, mx.npx, mx.nd.op, mx.sym.op, mx.nd._internal, mx.sym._internal, nd_register,
                   symbol_register, mx.nd.contrib, mx.sym.contrib]  # fmt: skip
        attributes = tuple((id(m), name, id(value)) for m in modules for name, value in sorted(vars(m).items()))
        methods = tuple((name, id(value)) for cls in classes for name, value in sorted(vars(cls).items()))
        flags = (autograd.is_recording(), autograd.is_training(), str(current_context()))
        code = id(gluon.HybridBlock._call_cached_op.__code__)
        semantics = (mx.util.is_np_array(), mx.util.is_np_shape())
        return (attributes, methods, code, flags, semantics, tuple(sorted(vars(np))))

    def dtype_of(self, tensor: NativeArray) -> str:
        return dtype_name(tensor)

    def native_loop(self, amp: Any, model: Block, optimizer: Trainer, checks_first: bool) -> Callable[[Any], None]:
        scaler = amp.backend.interop.adopt(optimizer, lambda: None)

        def step(x: NativeArray) -> None:
            with autograd.record(), scaler.scaled(model(x)) as scaled:
                autograd.backward(scaled)
            if checks_first:
                scaler.unscale()
            optimizer.step(1)

        return step

    def set_trainable(self, model: Block, layer: str, trainable: bool) -> None:
        for name, param in named_parameters(model):
            if name.startswith(f"{layer}."):
                param.grad_req = "write" if trainable else "null"

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        weights, skipped = contexts.step(lambda: Probe([1.0]), [(value,) for value in gradients], loss_scale)
        return [(weight, skipped) for (weight,) in weights]

    def run_ranks(self, kind: str, count: int, form: str, cases: Sequence[RankCase]) -> Answers:
        return run_on_ranks(kind, count, form, self.forms[form], cases)

    # -- optional ------------------------------------------------------------------------------------------------

    def grouped_sgd(self, model: Block, learning_rates: Sequence[float]) -> Any:
        params = list(model.collect_params().values())
        for param, rate in zip(params, learning_rates, strict=True):
            param.lr_mult = rate
        return gluon.Trainer(params, "sgd", {"learning_rate": 1.0})

    def decaying_sgd(self, model: Block, learning_rate: float, weight_decay: float) -> Any:
        return self._trainer([model], "sgd", learning_rate=learning_rate, wd=weight_decay)

    def rescaled_sgd(self, model: Block, learning_rate: float, factor: float) -> Any:
        return self._trainer([model], "sgd", learning_rate=learning_rate, rescale_grad=factor)

    def sparse(self, table: Array, learning_rate: float) -> tuple[Any, Any]:
        if NUMPY_API:
            self._lacks("sparse gradients: MXNet 2's numpy arrays are dense")
        model = Picked(table)
        return model, self.sgd([model], learning_rate)

    def wide_probe(self, values: Sequence[float]) -> Any:
        return initialized(Probe(values, wide=True))

    def cast(self, tensor: NativeArray, dtype: str) -> Any:
        # MXNet 2's bfloat16 has no arrays without dimensions (oneDNN).
        return cast(tensor if tensor.shape else tensor.reshape((1,)), dtype)

    def selections(self, tensor: Any) -> Mapping[str, Any]:
        top = (mx.npx if NUMPY_API else mx.nd).topk(tensor, k=2, axis=1, ret_typ="value")
        positive, detached = tensor * (tensor > 0), tensor * tensor.detach()
        parts = {"largest": tensor.max(axis=1), "top": top, "positive": positive, "detached": detached}
        return {name: part.sum() for name, part in parts.items()}

    def structured(self, weight: Array, bias: Array) -> Any:
        return Structured(dense(weight, bias, hidden=False))

    def layer_sgd(self, model: Block, layer: str, learning_rate: float) -> Any:
        return self.sgd([getattr(model, layer)], learning_rate)

    def run_op_on(self, op: str, dtypes: Sequence[str]) -> str:
        return _computed_in(OF_TWO[op](*[cast(sample(), dtype) for dtype in dtypes]))

    def native_calls(self, optimizer: Any) -> Mapping[str, Callable[[], object]]:
        return {
            "step": lambda: optimizer.step(1), "update": lambda: optimizer.update(1),
            "allreduce_grads": optimizer.allreduce_grads,
        }  # fmt: skip

    def attention(self, projections: Sequence[Array], heads: int) -> Any:
        return named({"attention": Attention(projections, heads)})

    def mapped(self, weight: Array, bias: Array) -> Any:
        return Mapped(dense(weight, bias, hidden=False))

    def layer_norm(self, size: int) -> Any:
        layers = {"dense": nn.Dense(size, in_units=size), "norm": nn.LayerNorm(in_channels=size)}
        return named({name: initialized(layer) for name, layer in layers.items()})

    def residual(self, weight: Array) -> Any:
        return Residual(dense(weight, np.zeros(len(weight), np.float32), hidden=False))

    def sized(self, kind: str) -> Any:
        if kind == "recurrent":
            layer = gluon.rnn.LSTM(7, input_size=13)
        elif kind == "depthwise":
            layer = nn.Conv2D(10, 3, groups=10, in_channels=10)
        elif kind.startswith("late"):
            layer = (nn.Conv2D if kind == "late convolution" else nn.Conv2DTranspose)(12, 3)
        else:
            layer = nn.Conv2DTranspose(12, 3, in_channels=10)
        return named({"layer": initialized(layer)})

    def dropout(self, size: int, rate: float) -> Any:
        return named({"dense": initialized(nn.Dense(size, in_units=size)), "drop": nn.Dropout(rate)})

    def nested_norm(self, size: int) -> Any:
        return named({"block": self.layer_norm(size)})

    def fixed_graph(self, folder: Path) -> Any:
        model = initialized(nn.Dense(3, in_units=4))
        model.hybridize()
        model(native(np.ones((2, 4))))
        model.export(str(folder / "net"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Cannot decide type")
            files = str(folder / "net-symbol.json"), ["data"], str(folder / "net-0000.params")
            return gluon.SymbolBlock.imports(*files)

    def refused_optimizers(self, model: Block) -> Mapping[str, Any]:
        stores = ("dist_async", "dist_device_async", "horovod", "byteps")
        settings: dict[str, dict[str, Any]] = {name: {"kvstore": name} for name in stores}
        settings["compressed"] = {"compression_params": {"type": "2bit", "threshold": 0.5}}
        params = list(model.collect_params().values())
        return {name: gluon.Trainer(params, "sgd", {"learning_rate": 0.1}, **each) for name, each in settings.items()}

    @contextmanager
    def other_state(self) -> Iterator[None]:
        with mx.cpu(1), autograd.train_mode():
            yield

    def clipped_device_run(
        self, gradients: Sequence[tuple[float, float]], max_norm: float, loss_scale: LossScale
    ) -> list[list[float]]:
        return contexts.step(lambda: Probe([1.0, 1.0]), gradients, loss_scale, max_norm)[0]

    def device_steps(
        self,
        policy: str | Policy,
        gradients: Sequence[Sequence[float | None]],
        loss_scale: LossScale,
        clip_value: float | None = None,
    ) -> list[tuple[float, float]]:
        policy = Policy.parse(policy) if isinstance(policy, str) else policy
        return contexts.steps(lambda: Probe([1.0]), policy, gradients, loss_scale, clip_value)

    def recorded_device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> Mapping[str, Sequence[int]]:
        return contexts.recorded(gradients, loss_scale)

    def scheduled_sgd(self, model: Block, learning_rates: Sequence[float]) -> Any:
        first = learning_rates[0]
        return self._trainer([model], "sgd", learning_rate=first, lr_scheduler=Listed(learning_rates))

    def attached(self, obj: Any) -> Any:
        if not isinstance(obj, gluon.Block):
            names = [name for name in vars(obj) if "amp" in name]
            own = obj._optimizer
            together = [own.aggregate_num, *[updater.aggregate_updates for updater in obj._updaters]]
            return names, [param.grad_req for param in obj._params], sorted(vars(own)), own.rescale_grad, together
        return [(path, type(block), sorted(vars(block)), _hooks(block)) for path, block in walk(obj)]


def _computed_in(output: NativeArray) -> str:
    """Return the dtype in which an operation computed; emulated bfloat16 numbers are in a float32 array."""
    name = dtype_name(output)
    if name != "float32":
        return name
    return name if (output.asnumpy().view(np.uint32) & 0xFFFF).any() else "bfloat16"


def _hooks(block: Any) -> list[int]:
    return [len(getattr(block, name)) for name in ("_forward_hooks", "_forward_pre_hooks")]


harness = MXNetHarness()
