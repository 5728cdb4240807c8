"""Emulated products: operands and results rounded to the compute dtype, the arithmetic between in float32.

float16: MXNet has arrays and casts of it on every CPU, but no matrix product there; the results are float16, and what
other operators do on them stays MXNet's own. Its casts round to the nearest, ties to even, forward and backward.

bfloat16, and float8 in dense layers: few CPUs run bfloat16 in MXNet, and none float8, so the rounded numbers stay in
float32 arrays, on which other operators compute in float32. Parameters in bfloat16 are such arrays too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import PlanRow, Policy

from ..mxnet_api import (
    CODES,
    NDArray,
    Symbol,
    cast,
    context_of,
    convert,
    dtype_code,
    from_numpy,
    map_tensors,
    mx,
    op_handle,
)
from . import float8
from .operations import COMPUTE, COPIED, FIRST_INPUT_ONLY, PRODUCTS, WIDEST
from .rounding import is_unknown, rounded

_FULLY_CONNECTED, _DECONVOLUTION = op_handle("FullyConnected"), op_handle("Deconvolution")
_FIRST_ONLY = frozenset(map(op_handle, FIRST_INPUT_ONLY))
_TAKEN = frozenset(CODES.values())


def rounded_floats(value: object) -> Any:
    """Return float32 and 16-bit tensors in nested lists rounded to bfloat16, in float32; everything else stays."""
    return map_tensors(_rounded_float, value)


def _rounded_float(tensor: Any) -> Any:
    if isinstance(tensor, NDArray):
        if is_empty(tensor) or tensor.stype != "default" or dtype_code(tensor) not in _TAKEN:
            return tensor
        if dtype_code(tensor) == CODES["float32"]:  # amp_cast has no gradient for a scalar array on MXNet 2
            return rounded(tensor, "bfloat16")
    elif is_unknown(tensor):
        return tensor
    return rounded(cast(tensor, "float32"), "bfloat16")


class ThreadLayer(threading.local):
    """The dense layer that this thread runs.

    Attributes:
        key: of its delayed scales; empty outside layers that have some.
    """

    key = ""


current_layer = ThreadLayer()
"""This thread's."""


class Emulation:
    """Runs operators of one policy between roundings.

    Args:
        policy: one with ``emulate``.

    Attributes:
        in_float32: rounded numbers are held in float32 arrays.
    """

    def __init__(self, policy: Policy) -> None:
        self._dtype = policy.region_dtype
        self._policy, self._float8 = policy, policy.compute_dtype == "float8"
        self.in_float32 = self._dtype == "bfloat16"

    def takes(self, rule: object, tensors: Sequence[Any]) -> bool:
        """Return whether an operator under this rule runs on these inputs between roundings."""
        if rule == WIDEST and self.in_float32:
            return all(isinstance(each, NDArray) and dtype_code(each) == CODES["bfloat16"] for each in tensors)
        return rule in (COMPUTE, COPIED)

    def run(
        self,
        handle: int,
        tensors: Sequence[Any],
        attributes: Mapping[str, object],
        compute: Callable[[list[Any]], Any],
    ) -> Any:
        """Return the operator's result.

        Args:
            handle: the operator's.
            tensors: its inputs, arrays or symbols.
            attributes: by name; those of ``FullyConnected`` are needed.
            compute: runs the operator on float32 inputs.
        """
        if any(map(is_empty, tensors)):
            return _of_nothing(handle, tensors, attributes, compute)
        if self._float8 and handle == _FULLY_CONNECTED and _is_linear(tensors, attributes):
            wide = [cast(tensor, "float32") for tensor in tensors]
            return float8.linear(wide, attributes, self._policy, current_layer.key)
        if handle == _DECONVOLUTION:
            compute = _in_float64(compute)
        first_only = handle in _FIRST_ONLY
        return self.result(compute([t if first_only and place else self.operand(t) for place, t in enumerate(tensors)]))

    def operand(self, tensor: Any) -> Any:
        """Return a tensor's numbers rounded, in float32; arrays of dtypes that a policy cannot name stay."""
        if self.in_float32:
            return _rounded_float(tensor)
        if isinstance(tensor, NDArray) and (tensor.stype != "default" or dtype_code(tensor) not in _TAKEN):
            return tensor
        return cast(cast(tensor, self._dtype), "float32")

    def result(self, value: Any) -> Any:
        """Return results rounded: an array, a list of arrays, or a symbol with any number of outputs."""
        if isinstance(value, Symbol):
            several = len(value.list_outputs()) > 1
            return mx.sym.Group([self._narrowed(each) for each in value]) if several else self._narrowed(value)
        # MXNet 2 returns several arrays in an object that is no list.
        return map_tensors(self._narrowed, value if isinstance(value, (list, tuple, NDArray)) else [*value])

    def _narrowed(self, tensor: Any) -> Any:
        return rounded(tensor, self._dtype) if self.in_float32 else cast(tensor, self._dtype)


def is_empty(tensor: object) -> bool:
    """Return whether a tensor is an array without elements, on which MXNet runs no operator in Python."""
    return isinstance(tensor, NDArray) and not tensor.size


def _in_float64(compute: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a transposed convolution that MXNet itself computes: oneDNN's crashes in its backward pass where weights
    are the result of an operator, and has no float64.
    """

    def run(inputs: list[Any]) -> Any:
        result = compute([convert(each, "float64") for each in inputs])
        return map_tensors(lambda each: convert(each, "float32"), result)

    return run


def _of_nothing(
    handle: int,
    tensors: Sequence[Any],
    attributes: Mapping[str, object],
    compute: Callable[[list[Any]], Any],
) -> Any:
    """Return an operator's result on arrays of which one is empty; MXNet's own dense layer fails on them."""
    if handle != _FULLY_CONNECTED:
        return compute(list(tensors))
    flat = float8.flattens(attributes)
    rows = tensors[0].shape[:1] if flat else tensors[0].shape[:-1]
    return from_numpy(np.zeros((*rows, tensors[1].shape[0]), np.float32), context_of(tensors[0]))


def _is_linear(tensors: Sequence[Any], attributes: Mapping[str, object]) -> bool:
    """Return whether a call of ``FullyConnected`` has all its inputs, of a known shape, as dense floating arrays."""
    arrays = [tensor for tensor in tensors if isinstance(tensor, NDArray)]
    floats = all(array.stype == "default" and dtype_code(array) in _TAKEN for array in arrays)
    without = str(attributes.get("no_bias", False)) in ("True", "1")
    return floats and len(tensors) == (2 if without else 3) and not any(map(is_unknown, tensors))


def row(policy: Policy) -> PlanRow:
    """Return the row of ``amp.explain()`` for a policy with ``emulate``."""
    if policy.region_dtype == "float32" and not policy.layer_overrides:
        return PlanRow("emulate", "true", "", "no effect", "everything computes in float32")
    dtype, products = policy.region_dtype, ", ".join(PRODUCTS)
    if dtype == "bfloat16":
        native = f"{products}: operands and results rounded to bfloat16 in float32 arrays; the rest computes in float32"
    else:
        native = f"{products}: operands and results {dtype} by amp_cast, computed in float32"
    return PlanRow(
        "emulate", "true", native, "emulated", "slower than float32: for trying a format, not for production"
    )
