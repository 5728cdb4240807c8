"""A block's weights as float32 arrays, by the paths of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from unifiedamp.backend import errors

from ..device.arrays import to_numpy
from ..device.versions import cast, context_of, from_numpy, param_dtype

FLOATING = ("float32", "float16", "bfloat16", "float64")


MastersOf = Callable[[Any], "list[Any] | None"]
"""A Parameter → its float32 masters, one for each context; None where it has none."""


def read(model: Any, masters_of: MastersOf) -> dict[str, Any]:
    """Return name → float32 array.

    Raises:
        PrepareError: a parameter has no value yet.
    """
    true = ((name, masters_of(param) or param.list_data()) for name, param in _parameters(model))
    return {name: to_numpy(arrays[0]).astype(np.float32) for name, arrays in true}


def write(model: Any, masters_of: MastersOf, weights: Mapping[str, Any]) -> None:
    """Set the parameters, and masters where there are some, on all their contexts."""
    for name, param in _parameters(model):
        # A numpy array would not do: a weight that has been used may lie in oneDNN's blocked layout.
        values = from_numpy(weights[name], context_of(param.list_data()[0]))
        param.set_data(cast(values, param_dtype(param.dtype)))
        for master in masters_of(param) or ():
            # A Trainer's state is a plain NDArray, also where parameters are numpy arrays.
            values = from_numpy(weights[name], context_of(master))
            master[:] = values if isinstance(master, type(values)) else values.as_nd_ndarray()


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for name, param in model._collect_params_with_prefix().items():
        if param._data is None:
            raise errors.PrepareError(
                f"parameter {name!r} has no value yet: call model.initialize(), and the model once on a batch where "
                "shapes follow from it"
            )
        if param_dtype(param.dtype) in FLOATING:
            yield name, param
