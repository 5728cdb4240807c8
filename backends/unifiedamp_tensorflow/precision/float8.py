"""Dense layers in float8, each operand scaled by its current largest magnitude; emulated on any device.

Inputs and kernels are rounded to float8 e4m3 (finite maximum 448), gradients to e5m2 (57344), as in Micikevicius et
al., "FP8 Formats for Deep Learning" (arXiv:2209.05433), by one scale per tensor, recomputed each time::

    scale = float8_max / amax(|tensor|)
    rounded = float32(round_to_float8(float32(tensor) * scale)) / scale

The three products of a layer are float32 products of rounded operands. An inf or nan makes its tensor's scale 0 or nan,
hence the whole product nan: the finite check sees it.

Keras 3's own float8 (``model.quantize("float8")``) is not used: its gradient fails outside
``tf.function`` (TensorFlow 2.21, Keras 3.15: "too many values to unpack"), its clipping turns an inf into a finite
number, and its scales are trainable variables that an optimizer must know to overwrite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import PlanRow

from .._types import Dense, Layer, Tensor
from ..internals import kernel, native
from . import layers
from .autocast import thread


class Format(NamedTuple):
    """A float8 format: bits after the binary point, lowest exponent of a normal number, largest number."""

    bits: int
    lowest_exponent: int
    largest: float


E4M3, E5M2 = Format(3, -6, 448.0), Format(2, -14, 57344.0)
MULTIPLE = 16
"""Float8 hardware needs sizes of products that are multiples of this; kept here too, so that frameworks agree."""
LARGEST_SCALE = 2.0**126
EXPONENT_BITS = 0x7F800000
"""The exponent bits of a float32 number, which alone are the power of two below it."""
NAME = "float8"
RULE = (
    f"Dense and EinsumDense layers whose inputs and outputs are multiples of {MULTIPLE}, "
    "unless layer_overrides names them"
)
NATIVE = "float32 products of operands rounded to float8"


def rounded(tensor: Tensor, kind: Format) -> Tensor:
    """Return float32 values of ``tensor`` rounded to float8.

    Arithmetic instead of casts: XLA of TensorFlow 2.15 rounds twice on the way to float8, and the graph optimizer of
    2.21 reports an error for each graph that holds a float8 tensor.
    """
    values = tf.cast(tensor, tf.float32)
    scale = tf.minimum(kind.largest / tf.reduce_max(tf.abs(values)), LARGEST_SCALE)
    values = values * scale
    exponent = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), EXPONENT_BITS), tf.float32)
    step = tf.maximum(exponent, 2.0**kind.lowest_exponent) * 2.0**-kind.bits
    return tf.round(values / step) * step * tf.math.reciprocal(scale)


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no annotations
def operand(tensor: Tensor) -> Any:
    """Round to e4m3 in the forward pass; the gradient passes unchanged, in the tensor's dtype."""
    dtype = tensor.dtype
    return rounded(tensor, E4M3), lambda gradient: tf.cast(gradient, dtype)


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no annotations
def outcome(tensor: Tensor) -> Any:
    """Pass in the forward pass; round the gradient to e5m2."""
    return tf.identity(tensor), lambda gradient: rounded(gradient, E5M2)


def call(layer: Dense, inputs: Tensor) -> Tensor | None:
    """Return the output of a Dense or EinsumDense layer for ``inputs`` of shape (…, inputs) in float8.

    None where its own call runs: in regions of other policies, and on inputs that are not dense floating tensors.
    """
    if thread.compute not in (None, NAME) or not isinstance(inputs, tf.Tensor) or not inputs.dtype.is_floating:
        return None
    weights = tf.convert_to_tensor(native(kernel(layer)))
    out = outcome(_multiply(layer, operand(inputs), operand(weights)))
    if layer.bias is not None:
        out = out + tf.cast(layer.bias, tf.float32)
    out = tf.cast(out, layer.compute_dtype)
    return out if layer.activation is None else layer.activation(out)


def _multiply(layer: Dense, inputs: Tensor, weights: Tensor) -> Tensor:
    if hasattr(layer, "equation"):
        return tf.einsum(layer.equation, inputs, weights)
    return tf.tensordot(inputs, weights, 1)


def rejection_reason(layer: Layer | Dense, policy_name: str, kept: str | None) -> str | None:
    """Return why a layer does not run in float8, "" where it does; None for layers that are not dense.

    Args:
        layer: any Keras layer.
        policy_name: the dtype policy that layers without an override have.
        kept: the dtype that ``layer_overrides`` gave it, or None.
    """
    kind: Any = layers.original_class(layer)
    bases = [base for base in (tf.keras.layers.Dense, tf.keras.layers.EinsumDense) if issubclass(kind, base)]
    if not bases:
        return None
    if kept:
        return f"layer_overrides: {kept}"
    if layer.dtype_policy.name != policy_name:
        return f"its dtype policy is {layer.dtype_policy.name!r}"
    if kind.call is not bases[0].call:
        return f"{kind.__name__} overrides call"
    if getattr(layer, "lora_enabled", False):
        return "it has LoRA weights"
    sizes = _sizes(layer)
    odd = [f"{name}={size}" for name, size in sizes.items() if size % MULTIPLE]
    return f"{', '.join(odd)}: not a multiple of {MULTIPLE}" if odd else ""


def _sizes(layer: Any) -> dict[str, int]:
    shape = [int(size) for size in kernel(layer).shape]
    labels: Any = range(2)
    kept: Any = (1,)
    if hasattr(layer, "equation"):
        operands, _, kept = layer.equation.replace(" ", "").partition("->")
        labels = operands.partition(",")[2].replace(".", "")
    sizes = {"inputs": 1, "outputs": 1}
    for label, size in zip(labels, shape, strict=True):
        sizes["outputs" if label in kept else "inputs"] *= size
    return sizes


def rows(chosen: dict[str, str]) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``: the rule, and each dense layer of the prepared models."""
    count = f"{sum(not why for why in chosen.values())} of {len(chosen)} dense layers" if chosen else "dense layers"
    found = [PlanRow(NAME, count, NATIVE, "emulated", RULE)]
    for path, why in chosen.items():
        if why:
            found.append(PlanRow(f"{NAME}.{path}", "not float8", "as its dtype policy says", note=why))
        else:
            found.append(PlanRow(f"{NAME}.{path}", NAME, NATIVE, "emulated"))
    return found
