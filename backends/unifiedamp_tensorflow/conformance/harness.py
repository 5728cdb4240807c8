"""Native TensorFlow and Keras objects for the shared suite."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import LossScale
from unifiedamp.conformance.harness import Array, Harness
from unifiedamp.conformance.ranks import Answers, RankCase, RankKind

from ..internals import native, set_dtype_policy
from ..precision.layers import parameters as named_parameters
from ..precision.layers import walk
from ..precision.region_layers import attach
from . import refused
from .models import Attends, ComplexProbe, Listed, Mapped, Picked, Probe, Ratio, Structured
from .ranks import KINDS, run_on_ranks

keras: Any = tf.keras

# The suite's oracles compute in float32, and it compares runs bit by bit. On a GPU, TensorFlow's own defaults are TF32,
# and kernels that sum in any order.
tf.config.experimental.enable_tensor_float_32_execution(False)
if tf.config.list_physical_devices("GPU"):
    tf.config.experimental.enable_op_determinism()


@functools.cache
def _following_dense() -> Any:
    """Return a float32 layer whose variables cast themselves (Keras 2: those made under a mixed policy do)."""
    layer = keras.layers.Dense(8, dtype="mixed_bfloat16")
    layer.build((None, 8))
    set_dtype_policy(layer, "float32")
    attach(layer, pinned=False, output_dtype=None)
    return layer


class TensorFlowHarness(Harness):
    """Plain Keras objects; steps are tested eager, as a ``tf.function`` and by XLA."""

    backend = "tensorflow"
    masters_follow_parameters = overrides_reach_run_op = False
    forms: Mapping[str, Mapping[str, Any]] = {"eager": {}, "compiled": {}, "xla": {"xla": True}}
    scaling_policies = ("mixed_float16", "mixed_bfloat16")
    float8_emulation: Mapping[str, Any] = {"emulate": True}
    rank_kinds: Mapping[str, RankKind] = KINDS
    _builds = True

    def probe(self, values: Sequence[float]) -> Any:
        return Probe(values)

    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> Any:
        last = len(weights) - 1
        layers = [
            keras.layers.Dense(bias.shape[0], activation=None if i == last else "relu", name=f"layer{i}")
            for i, (_, bias) in enumerate(weights)
        ]
        model = keras.Sequential([keras.Input((weights[0][0].shape[0],)), *layers])
        for layer, (weight, bias) in zip(layers, weights, strict=True):
            layer.set_weights([weight, bias])
        return model

    def put_layer(self, model: Any, layer: str, weight: Array, bias: Array) -> Any:
        if model.layers[-1].name == layer:
            model.pop()
        added = keras.layers.Dense(bias.shape[0], name=layer)
        model.add(added)
        added.set_weights([weight, bias])
        return added

    def convnet(self, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(8, 3, padding="same", name="conv"),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dense(10, name="head"),
            ]
        )
        for name in ("conv", "head"):
            kernel, bias = model.get_layer(name).get_weights()
            fan_in = np.prod(kernel.shape[:-1])
            model.get_layer(name).set_weights([rng.normal(0, fan_in**-0.5, kernel.shape), np.zeros_like(bias)])
        return model

    def ratio(self, epsilon: float) -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense"), Ratio(epsilon)])

    def image_batch(self, array: Array) -> Array:
        return array

    def sgd(self, models: Sequence[Any], learning_rate: float, momentum: float = 0.0) -> Any:
        return self._built(keras.optimizers.SGD(learning_rate, momentum), models)

    def adam(self, models: Sequence[Any], learning_rate: float) -> Any:
        return self._built(keras.optimizers.Adam(learning_rate, epsilon=1e-8), models)

    @contextmanager
    def left_to_prepare(self) -> Iterator[None]:
        self._builds = False
        try:
            yield
        finally:
            self._builds = True

    def _built(self, optimizer: Any, models: Sequence[Any]) -> Any:
        variables = [variable for model in models for variable in model.trainable_variables]
        # Over 16-bit variables amp.prepare builds it: it may have master weights to build it over.
        if self._builds and all(variable.dtype == "float32" for variable in variables):
            optimizer.build(variables)
        return optimizer

    def mean_square(self, output: Any, target: Any) -> Any:
        return tf.reduce_mean(tf.math.squared_difference(output, target))

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def parameters(self, model: Any) -> dict[str, Array]:
        found = named_parameters([model])
        return {name: variable.numpy().astype(np.float64) for name, variable in found.items()}

    def set_parameters(self, model: Any, values: Mapping[str, Array]) -> None:
        found = named_parameters([model])
        for name, value in values.items():
            found[name].assign(tf.cast(value, found[name].dtype))

    def optimizer_steps(self, optimizer: Any) -> int:
        return int(optimizer.iterations.numpy())

    def set_gradients(self, amp: Any, optimizer: Any, values: Mapping[str, Array]) -> None:
        present = amp.gradients(optimizer)
        for name, value in values.items():
            present[name] = tf.convert_to_tensor(value, tf.float32)

    @contextmanager
    def interrupted_update(self, optimizer: Any, error: BaseException) -> Iterator[None]:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        update, done = inner.update_step, list[object]()

        def broken(*args: Any, **kwargs: Any) -> None:
            if done:
                raise error
            done.append(update(*args, **kwargs))

        # On a GPU, Keras 2 compiles each update by itself; what it compiled would run no Python.
        found = {name: value for name, value in vars(inner).items() if name == "jit_compile"}
        vars(inner).update(dict.fromkeys(found, False), update_step=broken)
        try:
            yield
        finally:
            del vars(inner)["update_step"]
            vars(inner).update(found)

    def run_op(self, op: str) -> str | None:
        """Keras casts in layers, so an operation is a layer that follows regions."""
        if op not in ("matmul", "linear"):
            return None
        return self.dtype_of(_following_dense()(tf.ones((8, 8))))

    def global_state(self) -> Any:
        policy = keras.mixed_precision.global_policy().name
        return (policy, keras.backend.floatx(), tuple(sorted(tf.config.optimizer.get_experimental_options().items())))

    def set_trainable(self, model: Any, layer: str, trainable: bool) -> None:
        model.get_layer(layer).trainable = trainable

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        from .replicas import run_on_replicas

        return [(weight, skipped) for (weight,), skipped in run_on_replicas([(g,) for g in gradients], loss_scale)]

    def run_ranks(self, kind: str, count: int, form: str, cases: Sequence[RankCase]) -> Answers:
        return run_on_ranks(kind, count, form, self.forms[form], cases)

    def dtype_of(self, tensor: Any) -> str:
        return str(tf.as_dtype(tensor.dtype).name)

    # -- optional ------------------------------------------------------------------------------------------------

    def decaying_sgd(self, model: Any, learning_rate: float, weight_decay: float) -> Any:
        return self._built(keras.optimizers.SGD(learning_rate, weight_decay=weight_decay), [model])

    def scheduled_sgd(self, model: Any, learning_rates: Sequence[float]) -> Any:
        return self._built(keras.optimizers.SGD(Listed(learning_rates)), [model])

    def sparse(self, table: Array, learning_rate: float) -> tuple[Any, Any]:
        model = Picked(table)
        return model, self.sgd([model], learning_rate)

    def wide_probe(self, values: Sequence[float]) -> Any:
        return Probe(values, wide=True)

    def complex_probe(self, values: Sequence[complex]) -> Any:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))  # where TensorFlow cannot add to complex variables
        return super().complex_probe(values) if on_gpu else ComplexProbe(values)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return tf.cast(tensor, dtype)

    def selections(self, tensor: Any) -> Mapping[str, Any]:
        parts = {
            "largest": tf.reduce_max(tensor, 1), "top": tf.math.top_k(tensor, 2).values,
            "positive": tensor * tf.cast(tensor > 0, tensor.dtype), "detached": tensor * tf.stop_gradient(tensor),
        }  # fmt: skip
        return {name: tf.reduce_sum(part) for name, part in parts.items()}

    def structured(self, weight: Array, bias: Array) -> Any:
        return Structured(weight, bias)

    def attention(self, projections: Sequence[Array], heads: int) -> Any:
        return Attends(projections, heads)

    def mapped(self, weight: Array, bias: Array) -> Any:
        return Mapped(weight, bias)

    def kept_dense(self, weight: Array, bias: Array) -> Any:
        layer = keras.layers.Dense(bias.shape[0], dtype="float32", name="dense")
        model = keras.Sequential([keras.Input((weight.shape[0],)), layer])
        layer.set_weights([weight, bias])
        return model

    def layer_sgd(self, model: Any, layer: str, learning_rate: float) -> Any:
        return self._built(keras.optimizers.SGD(learning_rate), [model.get_layer(layer)])

    def fit(self, model: Any, optimizer: Any, x: Array, y: Array, batch_size: int) -> float:
        if getattr(model, "optimizer", None) is not optimizer:  # once: later passes run what Keras traced in the first
            model.compile(optimizer=optimizer, loss="mse")
        told = model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)
        return float(told.history["loss"][0])

    def native_loop(self, amp: Any, model: Any, optimizer: Any, checks_first: bool) -> Callable[[Any], None]:
        """Keras's gradients are always divided in a separate call."""
        wrapped = amp.backend.interop.wrap_optimizer(optimizer, lambda: None)

        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = wrapped.get_scaled_loss(model(x))
            variables = model.trainable_variables
            gradients = wrapped.get_unscaled_gradients(tape.gradient(loss, [native(each) for each in variables]))
            wrapped.apply_gradients(zip(gradients, variables, strict=True))

        return step

    def wide_dense(self, weight: Array, bias: Array) -> Any:
        layer = keras.layers.Dense(bias.shape[0], dtype="float64", name="dense")
        model = keras.Sequential([keras.Input((weight.shape[0],), dtype="float64"), layer])
        layer.set_weights([weight, bias])
        return model

    def layer_norm(self, size: int) -> Any:
        layers = [keras.layers.Dense(size, name="dense"), keras.layers.LayerNormalization(name="norm")]
        return keras.Sequential([keras.Input((size,)), *layers])

    def residual(self, weight: Array) -> Any:
        x = keras.Input((len(weight),))
        layer = keras.layers.Dense(len(weight), use_bias=False, name="dense")
        model = keras.Model(x, keras.layers.Add()([layer(x), x]))
        layer.set_weights([weight])
        return model

    def joined(self, weights: Sequence[Array]) -> Any:
        x = keras.Input((len(weights[0]),))
        names = ("left", "right")
        layers = [
            keras.layers.Dense(each.shape[1], use_bias=False, name=n) for each, n in zip(weights, names, strict=True)
        ]
        model = keras.Model(x, keras.layers.Multiply(name="join")([layer(x) for layer in layers]))
        for layer, weight in zip(layers, weights, strict=True):
            layer.set_weights([weight])
        return model

    def sized(self, kind: str) -> Any:
        if kind == "recurrent":
            return keras.Sequential([keras.Input((4, 13)), keras.layers.LSTM(7, name="layer")])
        if kind.startswith("late"):
            self._lacks("models that are prepared before they have variables")
        channels, name = keras.Input((8, 8, 10)), "layer"
        convolution = keras.layers.DepthwiseConv2D(3, name=name)
        return keras.Sequential(
            [channels, convolution if kind == "depthwise" else keras.layers.Conv2DTranspose(12, 3, name=name)]
        )

    def dropout(self, size: int, rate: float) -> Any:
        layers = [keras.layers.Dense(size, name="dense"), keras.layers.Dropout(rate, name="drop")]
        return keras.Sequential([keras.Input((size,)), *layers])

    def nested_norm(self, size: int) -> Any:
        layers = [keras.layers.Dense(size, name="dense"), keras.layers.LayerNormalization(name="norm")]
        block = keras.Sequential([keras.Input((size,)), *layers], name="block")
        return keras.Sequential([keras.Input((size,)), block])

    def refused_optimizers(self, model: Any) -> Mapping[str, Any]:
        return refused.optimizers()

    def refused_scopes(self) -> Mapping[str, AbstractContextManager[Any]]:
        return refused.scopes()

    @contextmanager
    def other_state(self) -> Iterator[None]:
        before = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            yield
        finally:
            keras.mixed_precision.set_global_policy(before)

    def clipped_device_run(
        self, gradients: Sequence[tuple[float, float]], max_norm: float, loss_scale: LossScale
    ) -> list[list[float]]:
        """The gradients of two replicas are summed."""
        from .replicas import run_on_replicas

        return [weights for weights, _ in run_on_replicas(gradients, loss_scale, max_norm)]

    def attached(self, obj: Any) -> Any:
        """A prepared optimizer is another object than the one given."""
        if not isinstance(obj, keras.layers.Layer):
            return type(obj), sorted(name for name in vars(obj) if "amp" in name)
        return [
            (type(layer), layer.dtype_policy.name, layer.compute_dtype, sorted(n for n in vars(layer) if "amp" in n))
            for _, layer in walk(obj)
        ]


harness = TensorFlowHarness()
