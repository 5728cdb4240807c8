"""Rounding float32 tensors to a format, forward and backward, in regions and in graphs.

MXNet has no operations on bits, and its casts to bfloat16 make zeros of subnormal numbers on some CPUs (oneDNN). So
these are operators in Python, which round on the host by ``unifiedamp.backend.rounding``. MXNet runs them on threads of
its own, in graphs too, static ones included.

MXNet frees what it makes of inputs in oneDNN's layouts before such an operator has read it, so they are copied
to its own layout before, and gradients after. The operators keep all inputs and outputs for the backward pass,
which is the default: MXNet remembers the choice of the last operator alone, and takes it for that of all.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from unifiedamp.backend import FLOAT_FORMATS, rounding

from .._types import Array, HostArray, Symbol
from ..mxnet_api import custom, mx, own_layout
from ..patches import make_operators_by_device

T = TypeVar("T")

ROUND = "unifiedamp_round"
"""The operator's name in MXNet's registry."""

make_operators_by_device()
atexit.register(mx.nd.waitall)  # a thread that still runs Python when the interpreter ends aborts the process


def rounded(tensor: T, format: str) -> T:
    """Return a float32 array or symbol rounded to a format, as is the gradient that arrives for it.

    Args:
        tensor: other dtypes than float32 stay.
        format: of ``FLOAT_FORMATS``.
    """
    return run(ROUND, [tensor], format=format)


def run(op_type: str, tensors: Sequence[T], **attributes: object) -> T:
    """Run an operator in Python, on inputs and gradients in MXNet's own layout."""
    return own_layout(custom(op_type, [own_layout(tensor) for tensor in tensors], **attributes))


class Rounding(mx.operator.CustomOp):  # type: ignore[misc]  # MXNet has no type hints
    """The operator in one place of a graph.

    Args:
        format: of ``FLOAT_FORMATS``.
    """

    def __init__(self, format: str) -> None:
        super().__init__()
        self._format = FLOAT_FORMATS[format]

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: Sequence[Array], out_data: Sequence[Array], aux: object
    ) -> None:
        """Round the input."""
        write(out_data[0], req[0], self._round(in_data[0].asnumpy()))

    def backward(
        self,
        req: Sequence[str],
        out_grad: Sequence[Array],
        in_data: Sequence[Array],
        out_data: Sequence[Array],
        in_grad: Sequence[Array],
        aux: object,
    ) -> None:
        """Round the gradient."""
        write(in_grad[0], req[0], self._round(out_grad[0].asnumpy()))

    def _round(self, values: HostArray) -> HostArray:
        return rounding.to_format(values, self._format) if values.dtype == np.float32 else values


@mx.operator.register(ROUND)
class RoundingProperties(mx.operator.CustomOpProp):  # type: ignore[misc]  # as above
    """What MXNet asks of the operator: one input, one output of its shape.

    Args:
        format: of ``FLOAT_FORMATS``.
    """

    def __init__(self, format: str) -> None:
        super().__init__(need_top_grad=True)
        self._format = format

    def create_operator(self, ctx: str, in_shapes: object, in_dtypes: object) -> Rounding:
        """Return the operator."""
        return Rounding(self._format)


def write(target: Array, request: str, values: HostArray) -> None:
    """Set an output of an operator in Python, or add to it, as MXNet requests."""
    if request == "add":
        values = target.asnumpy() + values
    if request != "null":
        target._sync_copyfrom(np.ascontiguousarray(values, target.dtype).reshape(target.shape))


def is_unknown(tensor: Array | Symbol) -> bool:
    """Return whether a tensor is the symbol of a parameter, or of zeros, whose shape the first batch decides.

    MXNet 1.9 infers it through the graph, and cannot do so through an operator in Python. Recurrent layers begin with
    such zeros.
    """
    attribute = getattr(tensor, "attr", None)
    if attribute is None:
        return False
    shape: Any = attribute("__shape__") or _shape_of_zeros(tensor)
    return shape is not None and not all(size > 0 for size in _numbers(shape))


def _shape_of_zeros(symbol: Any) -> str | None:
    """Return the shape that ``mx.sym.zeros`` was given; None for other symbols."""
    if symbol.list_arguments():
        return None
    node = json.loads(symbol.tojson())["nodes"][-1]
    return str(node["attrs"]["shape"]) if node["op"] in ("_zeros", "_zeros_without_dtype") else None


def _numbers(shape: str) -> list[int]:
    return [int(size) for size in shape.strip("()").split(",") if size.strip()]
