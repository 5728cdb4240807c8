"""Operators that pass no gradient to an input: eager ones get that input without its history.

MXNet records them and differentiates by zeros. Where the input comes from an operator whose backward pass does not need
its input, such as a cast or a product with a number, MXNet has freed the array that it then fills with zeros: 1.9
crashes the process, 2.0 raises. Casts would bring that to ``BlockGrad(dense(x))``.
"""

from __future__ import annotations

from collections.abc import Mapping

from .._types import Array
from ..mxnet_api import op_handle, tracing_arrays

_COMPARED = ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
_NUMPY_COMPARED = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal", *_LOGICAL)
_ROUNDED = ("ceil", "fix", "floor", "rint", "trunc")
_TESTED = ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "logical_not", "bitwise_not")
ALL_INPUTS = (
    "BlockGrad", "zeros_like", "ones_like", "shape_array", "size_array", "argmax", "argmin", "argsort", "logical_not",
    "round", *_ROUNDED, *(f"_npi_{name}" for name in (*_ROUNDED, "around", *_TESTED)),
    *(f"{form}_{name}" for name in (*_COMPARED, *_LOGICAL) for form in ("", "broadcast")),
    *(f"_{name}_scalar" for name in (*_COMPARED, *_LOGICAL)),
    *(f"_npi_{name}{form}" for name in _NUMPY_COMPARED for form in ("", "_scalar")),
    "_contrib_arange_like", "_contrib_index_array", "_npi_argmax", "_npi_argmin", "_npi_argsort", "_npi_full_like",
    "_npx_arange_like", "_npx_shape_array",
)  # fmt: skip
"""Operators that pass none to any input."""
SECOND_INPUT = ("broadcast_like", "gather_nd", "reshape_like", "_npx_reshape_like", "_npi_gather_nd", "_npx_gather_nd")
"""Operators that pass none to the second of two inputs."""


def _first_cut() -> Mapping[int, int]:
    """Return handle → the place from which on inputs get no gradient."""
    places = {**dict.fromkeys(ALL_INPUTS, 0), **dict.fromkeys(SECOND_INPUT, 1)}
    known = {op_handle(name): place for name, place in places.items()}
    return {handle: place for handle, place in known.items() if handle is not None}


FIRST_CUT = _first_cut()


def without_history(handle: int, arrays: list[Array]) -> list[Array]:
    """Return an operator's inputs, detached where it passes no gradient to them; a graph needs no such help."""
    first = FIRST_CUT.get(handle)
    if first is None or tracing_arrays():
        return arrays
    return [*arrays[:first], *(array.detach() for array in arrays[first:])]
