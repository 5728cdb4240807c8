"""Operators that pass no gradient to an input: eager ones get that input without its history.

MXNet records them and differentiates by zeros. Where the input comes from an operator whose backward pass does not need
its input, such as a cast or a product with a number, MXNet has freed the array that it then fills with zeros: 1.9
crashes the process, 2.0 raises. Casts would bring that to ``BlockGrad(dense(x))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


UNLESS_VALUES = ("topk", "_npx_topk")
"""Operators that pass none to any input unless a call asks for values, by ``ret_typ``."""


def _places() -> Mapping[int, int]:
    """Return handle → the first input that gets no gradient; all that follow get none either."""
    named = {**dict.fromkeys((*ALL_INPUTS, *UNLESS_VALUES), 0), **dict.fromkeys(SECOND_INPUT, 1)}
    known = {op_handle(name): place for name, place in named.items()}
    return {handle: place for handle, place in known.items() if handle is not None}


FIRST_DETACHED = _places()
_UNLESS_VALUES = frozenset(map(op_handle, UNLESS_VALUES))


def without_history(handle: int, arrays: list[Array], values: Sequence[object]) -> list[Array]:
    """Return an operator's inputs, detached where it passes no gradient to them; a graph needs no such help.

    Args:
        handle: the operator's.
        arrays: its inputs.
        values: its attributes' values.
    """
    first = FIRST_DETACHED.get(handle)
    if first is None or tracing_arrays() or (handle in _UNLESS_VALUES and ("value" in values or "both" in values)):
        return arrays
    return [*arrays[:first], *(array.detach() for array in arrays[first:])]
