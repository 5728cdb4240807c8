"""The three matrix products of a dense layer, each in float8, a block format or bfloat16, emulated by the recipes of
``Policy.recipe``.

Operands are rounded in numpy by ``unifiedamp.backend.rounding.to_operand``, each along the dimension that its product
sums over, and multiplied in float32. With one scale per tensor, activations and weights are rounded to float8 e4m3
(finite maximum 448), gradients to e5m2 (57344), as in Micikevicius et al., "FP8 Formats for Deep Learning"
(arXiv:2209.05433)::

    scale = float8_max / amax(|tensor|)
    product = (float32 sums of float8 a @ float8 b) / (scale_a * scale_b)

Output, its gradient and the input's gradient hold bfloat16 numbers, in float32; so does the weight's gradient where
scales are finer than the tensor. An inf or nan in a tensor makes an operand nan, so that the finite check sees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from unifiedamp.backend import Float8Recipe, Policy, rounding

from .._types import Array, HostArray
from ..mxnet_api import mx
from .float8_scales import LayerScales, find
from .rounding import run, write

T = TypeVar("T")

LINEAR = "unifiedamp_float8_linear"
"""The operator's name in MXNet's registry."""

ONE_SCALE = ("tensorwise", "delayed")
"""Recipes whose transposed operands hold the same numbers."""


def linear(tensors: Sequence[T], attributes: Mapping[str, object], policy: Policy, layer: str = "") -> T:
    """Return what ``FullyConnected`` gives on arrays or symbols, with its products by the policy's recipe; float32.

    A layer whose sizes are not multiples of ``Float8Recipe.multiple`` runs in bfloat16, emulated as well.

    Args:
        tensors: data, weight of shape (outputs, inputs), and a bias if there is one.
        attributes: of ``FullyConnected``.
        policy: one that computes in float8.
        layer: the key of its delayed scales, see ``float8_scales``; empty for none.
    """
    return run(
        LINEAR,
        tensors,
        outputs=attributes["num_hidden"],
        bias=len(tensors) > 2,
        flatten=flattens(attributes),
        recipe=";".join(["mixed_float8", *(f"{name}={value}" for name, value in policy.float8.settings().items())]),
        layer=layer,
    )


def flattens(attributes: Mapping[str, object]) -> bool:
    """Return whether ``FullyConnected`` takes the data's dimensions after the first as one."""
    return str(attributes.get("flatten", True)) in ("True", "1")


class Operand(NamedTuple):
    """A rounded matrix, and the inverse of its scale."""

    values: HostArray
    inverse: HostArray

    @property
    def turned(self) -> Operand:
        """The transposed matrix."""
        return Operand(self.values.T, self.inverse)


def bfloat16(values: HostArray) -> HostArray:
    """Return float32 values rounded to bfloat16."""
    return rounding.nearest(values)  # type: ignore[no-any-return]  # numpy's


def product(a: Operand, b: Operand) -> HostArray:
    """Return ``a @ b.T`` in float32, which holds each product of two float8 numbers exactly."""
    found: HostArray = (a.values @ b.values.T) * a.inverse * b.inverse
    return found


class Linear(mx.operator.CustomOp):  # type: ignore[misc]  # MXNet has no type hints
    """The operator in one place of a graph. It keeps nothing between its passes but amaxes.

    Args:
        recipe: how operands are rounded.
        scales: of delayed scaling; None for present magnitudes.
    """

    def __init__(self, recipe: Float8Recipe, scales: LayerScales | None) -> None:
        super().__init__()
        self._recipe, self._scales = recipe, scales

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: Sequence[Array], out_data: Sequence[Array], aux: object
    ) -> None:
        """Compute the output."""
        x, w, fits = self._inputs(in_data)
        low = fits and self._recipe.fprop == "float8"
        with np.errstate(all="ignore"):
            out = product(self._operand(x, low, "input"), self._operand(w, low, "weight"))
            if low and self._recipe.scaling == "block128":
                out = bfloat16(out)  # what the hardware's product returns, before the bias
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
        x, w, fits = self._inputs(in_data)
        given = bfloat16(out_grad[0].asnumpy()).reshape(len(x), len(w))
        recipe = self._recipe
        dgrad, wgrad = (fits and each == "float8" for each in (recipe.dgrad, recipe.wgrad))
        with np.errstate(all="ignore"):
            g = self._operand(given, dgrad, "gradient")
            dx = product(g, self._operand(w.T, dgrad, "weight"))
            same = wgrad and dgrad and recipe.scaling in ONE_SCALE
            across = g.turned if same else self._operand(given.T, wgrad, "gradient")
            dw, db = product(across, self._operand(x.T, wgrad, "input")), given.sum(0)
        if not wgrad or recipe.scaling not in ONE_SCALE:
            dw = bfloat16(dw)
        for target, request, gradient in zip(
            in_grad, req, (bfloat16(dx), dw, db if fits else bfloat16(db)), strict=False
        ):
            write(target, request, gradient)
        if fits and self._scales is not None:
            self._scales.note(input=x, weight=w, gradient=given)

    def _inputs(self, in_data: Sequence[Array]) -> tuple[HostArray, HostArray, bool]:
        """Return data as a matrix, the weight, and whether the recipe takes their sizes."""
        weight = in_data[1].asnumpy()
        data = in_data[0].asnumpy().reshape(-1, weight.shape[1])
        fits = data.size > 0 and not any(size % self._recipe.multiple for size in weight.shape)
        return data, weight, fits

    def _operand(self, values: HostArray, low: bool, kind: str) -> Operand:
        """Return a matrix whose product sums over its last dimension, rounded; with ``low=False`` to bfloat16."""
        if not low:
            return Operand(bfloat16(values), np.ones((), np.float32))
        known = None if self._scales is None else self._scales.now(kind)
        return Operand(
            *rounding.to_operand(
                values, self._recipe, gradient=kind == "gradient", weight=kind == "weight", scale=known
            )
        )


@mx.operator.register(LINEAR)
class LinearProperties(mx.operator.CustomOpProp):  # type: ignore[misc]  # as above
    """What MXNet asks of the operator.

    Args:
        outputs: ``num_hidden`` of ``FullyConnected``, as text; so are the others.
        bias: whether there is one.
        flatten: whether the data's dimensions after the first are one.
        recipe: a policy with the recipe.
        layer: see :func:`linear`.
    """

    def __init__(self, outputs: str, bias: str, flatten: str, recipe: str, layer: str) -> None:
        super().__init__(need_top_grad=True)
        self._outputs, self._bias, self._flatten = int(outputs), bias == "True", flatten == "True"
        self._recipe, self._layer = Policy.parse(recipe).float8, layer

    def list_arguments(self) -> list[str]:
        """Return the names of the inputs."""
        return ["data", "weight", "bias"] if self._bias else ["data", "weight"]

    def infer_shape(self, in_shape: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]], list[object]]:
        """Return the shapes of inputs and output; sizes that differ fail here, where the layer is called."""
        data, *others = in_shape
        weight, sizes = others[0], data[1:] if self._flatten else data[-1:]
        known = weight and all(size > 0 for size in sizes)
        if known and math.prod(sizes) != weight[1]:
            raise ValueError(f"data of shape {tuple(data)} does not fit a weight of shape {tuple(weight)}")
        shape = [data[0], self._outputs] if self._flatten else [*data[:-1], self._outputs]
        return [data, *others], [shape], []

    def create_operator(self, ctx: str, in_shapes: object, in_dtypes: object) -> Linear:
        """Return the operator."""
        return Linear(self._recipe, find(self._layer))
