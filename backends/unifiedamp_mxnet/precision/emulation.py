"""Emulated float16 products: operands and results are float16, the product between them runs in float32.

MXNet has float16 arrays and casts on every CPU, but no float16 matrix product there. Its casts round to the nearest,
ties to even, forward and backward: the gradient of a cast is a cast of the gradient.
"""

from __future__ import annotations

from typing import Any

from ..mxnet_api import NDArray, cast, map_tensors, mx, op_handle
from .operations import COMPUTE, PRODUCTS, VOCABULARY

PRODUCT_HANDLES = frozenset(op_handle(str(name)) for word in PRODUCTS for name in VOCABULARY[word])


def emulates(emulate: bool, handle: int, rule: object) -> bool:
    """Return whether a call runs in float32 between casts: of a product, where its inputs become the compute dtype."""
    return emulate and rule == COMPUTE and handle in PRODUCT_HANDLES


def widened(tensors: Any) -> Any:
    """Return the arrays or symbols in lists and mappings, which hold float16 numbers, as float32."""
    return map_tensors(lambda tensor: cast(tensor, "float32"), tensors)


def narrowed(result: Any, dtype: str) -> Any:
    """Return an operator's result in ``dtype``: an array, a list of arrays, or a symbol with any number of outputs."""
    if isinstance(result, (list, tuple, NDArray)):
        return map_tensors(lambda tensor: cast(tensor, dtype), result)
    if len(result.list_outputs()) > 1:
        return mx.sym.Group([cast(each, dtype) for each in result])
    return cast(result, dtype)
