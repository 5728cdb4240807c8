"""The harness of the conformance suite for JAX: plain Flax and optax objects."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from unifiedamp.backend import LossScale
from unifiedamp.conformance.harness import Array, Harness

from . import sharded
from .autocast import current, promote_dtype
from .optimizer import Optimizer


class Probe(nnx.Module):
    """Scalars ``w0``, ``w1``, …; returns ``sum(w_i * x_i)``."""

    def __init__(self, values: Sequence[float]) -> None:
        self.count = len(values)
        for i, value in enumerate(values):
            setattr(self, f"w{i}", nnx.Param(jnp.array([value], jnp.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Run the model."""
        return sum((getattr(self, f"w{i}")[...] * x[i]).sum() for i in range(self.count))


def _linear(kernel: Array, bias: Array) -> nnx.Linear:
    layer = nnx.Linear(*kernel.shape, rngs=nnx.Rngs(0))
    layer.kernel.set_value(jnp.asarray(kernel))
    layer.bias.set_value(jnp.asarray(bias))
    return layer


class Mlp(nnx.Module):
    """Dense layers ``layer0``, ``layer1``, … with ReLU in between."""

    def __init__(self, weights: Sequence[tuple[Array, Array]]) -> None:
        self.count = len(weights)
        for i, (kernel, bias) in enumerate(weights):
            setattr(self, f"layer{i}", _linear(kernel, bias))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Run the model."""
        for i in range(self.count):
            x = getattr(self, f"layer{i}")(nnx.relu(x) if i else x)
        return x


class ConvNet(nnx.Module):
    """Convolution, batch norm, ReLU, dense."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Run the model."""
        return self.head(nnx.relu(self.norm(self.conv(x))).reshape(len(x), -1))


def _layer_runs() -> dict[str, Any]:
    """Operation → a Flax layer that is one, following the region."""
    new: dict[str, Any] = {"rngs": nnx.Rngs(0), "promote_dtype": promote_dtype}
    return {
        "matmul": nnx.Einsum("ij,jk->ik", (8, 8), **new),
        "linear": nnx.Linear(8, 8, **new),
        "conv": lambda x: nnx.Conv(8, 8, (3,), **new)(x[None]),
        "conv_transpose": lambda x: nnx.ConvTranspose(8, 8, (3,), **new)(x[None]),
        "embedding": lambda _: nnx.Embed(8, 8, **new)(jnp.arange(8)),
    }


_FUNCTIONS = {
    "softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax, "relu": jax.nn.relu, "gelu": jax.nn.gelu,
    "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "softplus": jax.nn.softplus, "exp": jnp.exp,
    "log": jnp.log, "rsqrt": jax.lax.rsqrt, "sum": jnp.sum, "mean": jnp.mean, "prod": jnp.prod, "cumsum": jnp.cumsum,
    "norm": jnp.linalg.norm,
}  # fmt: skip


sgd, adam = functools.cache(optax.sgd), functools.cache(optax.adam)
"""One cached transformation per setting: ``jax.jit`` would compile a second one again."""


def _over(models: Sequence[nnx.Module], tx: optax.GradientTransformation) -> Optimizer:
    return Optimizer(models[0] if len(models) == 1 else nnx.List(models), tx)


class JaxHarness(Harness):
    """Creates JAX objects."""

    backend = "jax"
    scaling_policies = ("mixed_bfloat16",)

    def probe(self, values: Sequence[float]) -> Probe:
        """See ``Harness``."""
        return Probe(values)

    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> Mlp:
        """See ``Harness``."""
        return Mlp(weights)

    def convnet(self, seed: int) -> ConvNet:
        """See ``Harness``."""
        return ConvNet(seed)

    def image_batch(self, array: Array) -> Array:
        """See ``Harness``."""
        return array

    def sgd(self, models: Sequence[Any], learning_rate: float, momentum: float = 0.0) -> Optimizer:
        """See ``Harness``."""
        return _over(models, sgd(learning_rate, momentum or None))

    def adam(self, models: Sequence[Any], learning_rate: float) -> Optimizer:
        """See ``Harness``."""
        return _over(models, adam(learning_rate))

    def mean_square(self, output: jax.Array, target: jax.Array) -> jax.Array:
        """See ``Harness``."""
        return jnp.square(output - target).mean()

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """See ``Harness``."""
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def parameters(self, model: Any) -> dict[str, Array]:
        """See ``Harness``."""
        flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return {".".join(map(str, path)): np.asarray(one.get_value(), np.float64) for path, one in flat}

    def layer_sgd(self, model: Any, layer: str, learning_rate: float) -> Optimizer:
        """See ``OptionalHarness``."""
        return _over([getattr(model, layer)], sgd(learning_rate, None))

    def put_layer(self, model: Any, layer: str, weight: Array, bias: Array) -> nnx.Linear:
        """See ``OptionalHarness``."""
        added = _linear(weight, bias)
        setattr(model, layer, added)
        model.count = int(layer.removeprefix("layer")) + 1
        return added

    def set_parameters(self, model: Any, values: Mapping[str, Array]) -> None:
        """See ``OptionalHarness``."""
        for path, one in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            if ".".join(map(str, path)) in values:
                one.set_value(jnp.asarray(values[".".join(map(str, path))], jnp.float32))

    def selections(self, tensor: jax.Array) -> Mapping[str, Any]:
        """See ``OptionalHarness``."""
        parts = {
            "largest": tensor.max(1), "top": jax.lax.top_k(tensor, 2)[0],
            "positive": tensor * (tensor > 0), "detached": tensor * jax.lax.stop_gradient(tensor),
        }  # fmt: skip
        return {name: part.sum() for name, part in parts.items()}

    def optimizer_steps(self, optimizer: Any) -> int:
        """See ``Harness``."""
        return int(optimizer.step.get_value())

    def set_gradients(self, amp: Any, optimizer: Any, values: Mapping[str, Array]) -> None:
        """See ``Harness``."""
        amp.gradients(optimizer).update({name: jnp.asarray(value, jnp.float32) for name, value in values.items()})

    def interrupted_update(self, optimizer: Any, error: BaseException) -> None:
        """See ``Harness``: JAX updates are functional, so there is nothing to interrupt."""
        return

    def run_op(self, op: str) -> str | None:
        """See ``Harness``."""
        run = _layer_runs().get(op) or _FUNCTIONS.get(op)
        return None if run is None else str(run(jnp.ones((8, 8), jnp.float32)).dtype)

    def global_state(self) -> Any:
        """See ``Harness``."""
        return current.value, jax.config.jax_default_matmul_precision, str(jax.config.jax_default_device)

    def dtype_of(self, tensor: Any) -> str:
        """See ``Harness``."""
        return str(tensor.dtype)

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        """See ``Harness``."""
        return sharded.device_run(list(gradients), str(loss_scale))


harness = JaxHarness()
