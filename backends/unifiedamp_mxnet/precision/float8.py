"""The three matrix products of a dense layer in float8, emulated: operands scaled by their present largest magnitude.

Activations and weights are rounded to float8 e4m3 (finite maximum 448), gradients to e5m2 (57344), as in Micikevicius
et al., "FP8 Formats for Deep Learning" (arXiv:2209.05433). Each tensor has one scale, computed anew each time::

    scale = float8_max / amax(|tensor|)
    product = (float32 sums of float8 a @ float8 b) / (scale_a * scale_b)

Output, its gradient and the input's gradient hold bfloat16 numbers, in float32. An inf or nan in a tensor makes its
scale 0 or nan, and the product nan, so that the finite check sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from unifiedamp.backend import FLOAT_FORMATS, FloatFormat, rounding

from .._types import Array, HostArray
from ..mxnet_api import mx
from .rounding import run, write

T = TypeVar("T")

LINEAR = "unifiedamp_float8_linear"
"""The operator's name in MXNet's registry."""

MULTIPLE = 16
"""Float8 hardware needs sizes of products that are multiples of this; kept here too, so that frameworks agree."""

E4M3, E5M2 = FLOAT_FORMATS["float8_e4m3fn"], FLOAT_FORMATS["float8_e5m2"]


def linear(tensors: Sequence[T], attributes: Mapping[str, object]) -> T:
    """Return what ``FullyConnected`` gives on arrays or symbols, with its products in float8; float32.

    A layer whose sizes are not multiples of :data:`MULTIPLE` runs in bfloat16, emulated as well.

    Args:
        tensors: data, weight of shape (outputs, inputs), and a bias if there is one.
        attributes: of ``FullyConnected``.
    """
    flatten = flattens(attributes)
    return run(LINEAR, tensors, outputs=attributes["num_hidden"], bias=len(tensors) > 2, flatten=flatten)


def flattens(attributes: Mapping[str, object]) -> bool:
    """Return whether ``FullyConnected`` takes the data's dimensions after the first as one."""
    return str(attributes.get("flatten", True)) in ("True", "1")


class Operand(NamedTuple):
    """A rounded matrix, and the inverse of its scale."""

    values: HostArray
    inverse: HostArray


def bfloat16(values: HostArray) -> HostArray:
    """Return float32 values rounded to bfloat16."""
    return rounding.nearest(values)  # type: ignore[no-any-return]  # numpy's


def operand(values: HostArray, format: FloatFormat, in_float8: bool) -> Operand:
    """Return a matrix rounded to float8, or with ``in_float8=False`` to bfloat16."""
    if in_float8:
        return Operand(*rounding.to_scaled_format(values, format))
    return Operand(bfloat16(values), np.ones((), np.float32))


def product(a: Operand, b: Operand) -> HostArray:
    """Return ``a @ b`` in float32, which holds each product of two float8 numbers exactly."""
    found: HostArray = (a.values @ b.values) * a.inverse * b.inverse
    return found


class Linear(mx.operator.CustomOp):  # type: ignore[misc]  # MXNet has no type hints
    """The operator in one place of a graph. It keeps nothing between its passes."""

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: Sequence[Array], out_data: Sequence[Array], aux: object
    ) -> None:
        """Compute the output."""
        x, w, _ = _operands(in_data)
        with np.errstate(all="ignore"):
            out = product(x, Operand(w.values.T, w.inverse))
            if len(in_data) > 2:
                out = out + bfloat16(in_data[2].asnumpy())
        write(out_data[0], req[0], bfloat16(out))

    def backward(
        self,
        req: Sequence[str],
        out_grad: Sequence[Array],
        in_data: Sequence[Array],
        out_data: Sequence[Array],
        in_grad: Sequence[Array],
        aux: object,
    ) -> None:
        """Compute the gradients of data, weight and bias; in bfloat16 all of them are rounded to it."""
        x, w, in_float8 = _operands(in_data)
        given = bfloat16(out_grad[0].asnumpy()).reshape(len(x.values), len(w.values))
        with np.errstate(all="ignore"):
            g = operand(given, E5M2, in_float8)
            gradients = [bfloat16(product(g, w)), product(Operand(g.values.T, g.inverse), x), given.sum(0)]
        if not in_float8:
            gradients = [bfloat16(gradient) for gradient in gradients]
        for target, request, gradient in zip(in_grad, req, gradients, strict=False):
            write(target, request, gradient)


def _operands(in_data: Sequence[Array]) -> tuple[Operand, Operand, bool]:
    """Return data as a matrix, the weight, and whether both are float8."""
    weight = in_data[1].asnumpy()
    data = in_data[0].asnumpy().reshape(-1, weight.shape[1])
    in_float8 = data.size > 0 and not any(size % MULTIPLE for size in weight.shape)
    return operand(data, E4M3, in_float8), operand(weight, E4M3, in_float8), in_float8


@mx.operator.register(LINEAR)
class LinearProperties(mx.operator.CustomOpProp):  # type: ignore[misc]  # as above
    """What MXNet asks of the operator.

    Args:
        outputs: ``num_hidden`` of ``FullyConnected``, as text; so are the others.
        bias: whether there is one.
        flatten: whether the data's dimensions after the first are one.
    """

    def __init__(self, outputs: str, bias: str, flatten: str) -> None:
        super().__init__(need_top_grad=True)
        self._outputs, self._bias, self._flatten = int(outputs), bias == "True", flatten == "True"

    def list_arguments(self) -> list[str]:
        """Return the names of the inputs."""
        return ["data", "weight", "bias"] if self._bias else ["data", "weight"]

    def infer_shape(self, in_shape: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]], list[object]]:
        """Return the shapes of inputs and output."""
        data, *others = in_shape
        shape = [data[0], self._outputs] if self._flatten else [*data[:-1], self._outputs]
        return [data, *others], [shape], []

    def create_operator(self, ctx: str, in_shapes: object, in_dtypes: object) -> Linear:
        """Return the operator."""
        return Linear()
