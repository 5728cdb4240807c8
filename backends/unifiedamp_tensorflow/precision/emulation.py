"""Emulated 16-bit products: operands and results rounded to their dtype, the arithmetic between in float32.

TensorFlow's functions of matrix products and convolutions, which all Keras layers end in, are replaced in regions of
policies with ``emulate`` and in calls of their prepared models. A bias is added before the result is rounded, as fused
kernels do. Other operations use TensorFlow's own 16-bit kernels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import FLOAT_FORMATS, PlanRow, Policy, Switch, errors

from .. import patches
from .._types import Layer, Tensor
from ..device.selection import DeviceInfo
from ..internals import BIASES, PRODUCTS, RESHAPES, uses_cudnn
from .autocast import thread
from .rounding import rounded

LOW = ("float16", "bfloat16")
FUSED = ("LSTM", "GRU")
"""Layers that are one kernel of cuDNN's on a GPU."""
PRODUCT = "_unifiedamp_product"
"""Attribute of a rounded result: the same in float32, for the bias that may follow."""
NATIVE = "matrix products and convolutions: operands and results rounded to their 16-bit dtype, computed in float32"


class Emulating:
    """A context in which this thread's 16-bit products are emulated; nestable."""

    def __enter__(self) -> None:
        _FUNCTIONS.__enter__()
        self._before, thread.emulates = thread.emulates, True

    def __exit__(self, *exception: object) -> None:
        thread.emulates = self._before
        _FUNCTIONS.__exit__(*exception)


def _product(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of a function in ``PRODUCTS``."""

    @functools.wraps(native)
    def run(*args: Any, **options: Any) -> Any:
        dtype = _low_dtype([*args, *options.values()]) if thread.emulates else None
        if dtype is None:
            return native(*args, **options)
        wanted = tf.as_dtype(options.get("Tout") or dtype)
        if "Tout" in options:
            options["Tout"] = tf.float32
        found = native(*map(_operand, args), **{name: _operand(value) for name, value in options.items()})
        return _result(found, wanted.name)

    return run


def _bias(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of a function in ``BIASES``."""

    @functools.wraps(native)
    def run(value: Any, bias: Any, *args: Any, **options: Any) -> Any:
        product = getattr(value, PRODUCT, None) if thread.emulates else None
        if product is None or _name(bias) not in LOW or not _is_bias(value, bias):
            return native(value, bias, *args, **options)
        return _result(native(product, _operand(bias), *args, **options), value.dtype.name)

    return run


def _is_bias(value: Tensor, bias: Any) -> bool:
    """Whether a tensor has fewer dimensions than a product, or the first ones of size 1."""
    rank, own = value.shape.rank, bias.shape
    return rank is not None and len(own) <= rank and (len(own) < rank or own[0] == 1)


def _reshape(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of a function in ``RESHAPES``."""
    signature = inspect.signature(native)

    @functools.wraps(native)
    def run(value: Any, *args: Any, **options: Any) -> Any:
        found = native(value, *args, **options)
        product = getattr(value, PRODUCT, None) if thread.emulates else None
        if product is not None:
            again = signature.bind(product, *args, **options)
            again.arguments["name"] = None  # a name is for one operation
            setattr(found, PRODUCT, native(*again.args, **again.kwargs))
        return found

    return run


_REPLACED = {
    place: replaced(getattr(*place))
    for places, replaced in ((PRODUCTS, _product), (BIASES, _bias), (RESHAPES, _reshape))
    for place in places
}
_FUNCTIONS = Switch(
    lambda: {place: getattr(*place) for place in _REPLACED}, patches.write_functions, _REPLACED
)  # fmt: skip
"""Replaces the functions; nestable, and shared by threads."""


def _name(value: Any) -> str | None:
    # A variable of Keras 2 that casts itself has the dtype that it casts from.
    dtype = getattr(tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value, "dtype", None)
    return getattr(dtype, "name", dtype)


def _low_dtype(values: Any) -> str | None:
    """Return the 16-bit dtype of the first tensor that has one."""
    for value in values:
        found = _low_dtype(value) if isinstance(value, (list, tuple)) else _name(value)
        if found in LOW:
            return found
    return None


def _operand(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_operand, value))
    name = _name(value)
    if name not in LOW:
        return value
    value = tf.convert_to_tensor(value)
    # The gradient of a cast is a cast: both are exact, or round, where XLA drops neither.
    return tf.cast(value, tf.float32) if tf.executing_eagerly() else rounded(value, FLOAT_FORMATS[name])


def _result(value: Tensor, dtype: str) -> Tensor:
    if dtype not in LOW:
        return value
    found: Tensor = tf.cast(value if tf.executing_eagerly() else rounded(value, FLOAT_FORMATS[dtype]), dtype)
    setattr(found, PRODUCT, value)
    return found


# -- checks and answers ------------------------------------------------------------------------------------------------


def check_policy(policy: Policy, mode: str) -> None:
    """Refuse a policy that cannot be emulated.

    Raises:
        PolicyNotSupportedError: it is for the graph rewrite.
    """
    dtypes = {policy.compute_dtype, *policy.layer_overrides.values()} & set(LOW)
    if not policy.emulate or policy.compute_dtype == "float8" or not dtypes:
        return
    if mode != "keras":
        raise errors.PolicyNotSupportedError(
            f"policy {str(policy)!r}: TensorFlow's graph rewrite chooses its own kernels, which cannot be emulated; "
            "use mode='keras', or leave emulate out"
        )


def check_layer(path: str, layer: Layer, kind: str, device: DeviceInfo) -> None:
    """Refuse a layer that runs in a fused kernel, which cannot be emulated.

    Raises:
        PrepareError: a recurrent layer on a GPU.
    """
    if kind in FUSED and not device.is_cpu and layer.compute_dtype in LOW and uses_cudnn(layer):
        raise errors.PrepareError(
            f"layer {path!r} cannot be emulated: on a GPU, {kind} is one kernel of cuDNN's; make it with "
            f"use_cudnn=False (Keras 3), or give layer_overrides={{{path!r}: 'float32'}}"
        )


def rows(policy: Policy) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``."""
    if not policy.emulate or policy.compute_dtype == "float8":
        return []
    if policy.compute_dtype == "float32" and not policy.layer_overrides:
        return [PlanRow("emulate", "true", "", "no effect", "everything computes in float32")]
    note = "slower than the native dtype: for trying a format, not for production"
    return [PlanRow("emulate", "true", NATIVE, "emulated", note)]
