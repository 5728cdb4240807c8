"""The op vocabulary in TensorFlow's terms, and custom functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Layer
from .autocast import DISABLED, thread

LAYER_OPS: dict[str, tuple[str, ...]] = {
    "linear": ("Dense", "EinsumDense"),
    "conv": ("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
    "conv_transpose": ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
    "attention": ("MultiHeadAttention", "GroupedQueryAttention", "Attention", "AdditiveAttention"),
    "embedding": ("Embedding",),
    "rnn": ("SimpleRNN", "LSTM", "GRU", "SimpleRNNCell", "LSTMCell", "GRUCell", "RNN"),
    "layer_norm": ("LayerNormalization", "RMSNormalization"),
    "batch_norm": ("BatchNormalization",),
    "group_norm": ("GroupNormalization",),
}
"""Operations that are a Keras layer, and so can have a dtype policy."""

NORM_LAYERS = (*LAYER_OPS["layer_norm"], *LAYER_OPS["batch_norm"], *LAYER_OPS["group_norm"], "UnitNormalization")

REWRITE_OPS: dict[str, tuple[str, ...]] = {
    "matmul": ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"),
    "linear": ("MatMul",),
    "conv": ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropFilterV2",
             "Conv3DBackpropInputV2", "DepthwiseConv2dNative"),
    "conv_transpose": ("Conv2DBackpropInput", "Conv3DBackpropInputV2"),
    "softmax": ("Softmax",),
    "log_softmax": ("LogSoftmax",),
    "batch_norm": ("FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
    "relu": ("Relu", "ReluGrad"),
    "gelu": ("Erf",),
    "sigmoid": ("Sigmoid", "SigmoidGrad"),
    "tanh": ("Tanh", "TanhGrad"),
    "softplus": ("Softplus", "SoftplusGrad"),
    "exp": ("Exp", "Expm1"),
    "log": ("Log", "Log1p"),
    "pow": ("Pow",),
    "rsqrt": ("Rsqrt", "RsqrtGrad"),
    "sum": ("Sum",),
    "mean": ("Mean",),
    "prod": ("Prod",),
    "cumsum": ("Cumsum",),
    "norm": ("L2Loss",),
    "cross_entropy": ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
}  # fmt: skip
"""Operations as the names of graph nodes, for the lists of the graph rewrite."""


def check_layer_ops(overrides: Mapping[str, str]) -> None:
    """Refuse what ``mode="keras"`` cannot override.

    Raises:
        UnsupportedError: the operation is not a layer, or the choice is "widest".
    """
    for op, choice in overrides.items():
        if op not in LAYER_OPS:
            raise errors.UnsupportedError(
                f"op_overrides.{op}: Keras policies belong to layers, and {op!r} is not a layer; use "
                f'backend_options.tensorflow.mode="graph_rewrite", or layer_overrides (layers: {", ".join(LAYER_OPS)})'
            )
        if choice == "widest":
            raise errors.UnsupportedError(
                f"op_overrides.{op}: a Keras layer casts all inputs to its own dtype, so 'widest' is not possible; "
                "use 'float32' or 'compute'"
            )


def layer_op(layer: Layer, overrides: Mapping[str, str]) -> str | None:
    """Return the choice for the operation that ``layer`` is, or None."""
    kinds = {base.__name__ for base in type(layer).__mro__}
    return next((choice for op, choice in overrides.items() if kinds & set(LAYER_OPS[op])), None)


def custom_function(target: Callable[..., Any], cast_inputs: str | None) -> Callable[..., Any]:
    """Return ``target`` casting floating tensor arguments inside an enabled region, with layers left in float32.

    Raises:
        errors.UnsupportedError: ``target`` is a class; TensorFlow's custom gradients are functions.
    """
    if isinstance(target, type):
        raise errors.UnsupportedError(
            f"amp_function: TensorFlow has no custom-operation classes ({target.__name__}); decorate a function, "
            "tf.custom_gradient ones included"
        )

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        if cast_inputs is None or not _in_region():
            return target(*args, **kwargs)
        args, kwargs = tf.nest.map_structure(lambda value: _cast_floating(value, cast_inputs), (args, kwargs))
        before, thread.compute = thread.compute, DISABLED
        try:
            return target(*args, **kwargs)
        finally:
            thread.compute = before

    return call


def _in_region() -> bool:
    return thread.training is not None and thread.compute != DISABLED


def _cast_floating(value: Any, dtype: str) -> Any:
    if isinstance(value, (tf.Tensor, tf.Variable)) and value.dtype.is_floating:
        return tf.cast(value, dtype)
    return value
