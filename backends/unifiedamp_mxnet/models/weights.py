"""``MXNetWeights``: a block's weights as float32 arrays, by the paths of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import Weights, errors

from .._types import Array, Block, HostArray, Parameter, Trainer
from ..device.arrays import to_numpy
from ..device.numpy_semantics import in_numpy_semantics
from ..layer_paths import named_parameters
from ..mxnet_api import cast, context_of, from_numpy, param_dtype
from . import optimizer_state

FLOATING = ("float32", "float16", "bfloat16", "float64")

MastersOf = Callable[[Parameter], "list[Array] | None"]
"""A Parameter → its float32 masters, one for each context; None where it has none."""

LoadMasters = Callable[[Parameter, HostArray], bool]
"""Sets a Parameter to float32 values; returns False where that is not its business."""


class MXNetWeights(Weights):
    """Reads and writes masters where there are some, else the parameters.

    Args:
        masters_of: finds the masters.
        load_masters: sets a parameter whose updates are rounded; returns False for another one.
    """

    means = "by the paths of parameters"

    def __init__(self, masters_of: MastersOf, load_masters: LoadMasters) -> None:
        self._masters_of, self._load_masters = masters_of, load_masters

    @in_numpy_semantics
    def read(self, model: Block) -> dict[str, HostArray]:
        """See the role.

        Raises:
            PrepareError: a parameter has no value yet.
        """
        found = ((name, self._masters_of(param) or param.list_data()) for name, param in _parameters(model))
        return {name: to_numpy(arrays[0]).astype(np.float32) for name, arrays in found}

    @in_numpy_semantics
    def write(self, model: Block, weights: Mapping[str, HostArray]) -> None:
        for name, param in _parameters(model):
            if self._load_masters(param, weights[name]):
                continue
            # A numpy array would not do: a weight that has been used may lie in oneDNN's blocked layout.
            values = from_numpy(weights[name], context_of(param.list_data()[0]))
            param.set_data(cast(values, param_dtype(param.dtype)))
            for master in self._masters_of(param) or ():
                # A Trainer's state is a plain NDArray, also where parameters are numpy arrays.
                values = from_numpy(weights[name], context_of(master))
                master[:] = values if isinstance(master, type(values)) else values.as_nd_ndarray()

    def read_optimizer(self, optimizer: Trainer, models: Sequence[Block]) -> dict[str, Any]:
        return optimizer_state.read(optimizer)

    def check_optimizer(self, optimizer: Trainer, models: Sequence[Block], state: Mapping[str, Any]) -> None:
        optimizer_state.check(optimizer, state)

    def write_optimizer(self, optimizer: Trainer, models: Sequence[Block], state: Mapping[str, Any]) -> None:
        optimizer_state.write(optimizer, state)


def _parameters(model: Block) -> Iterator[tuple[str, Parameter]]:
    for name, param in named_parameters(model):
        if param._data is None:
            raise errors.PrepareError(
                f"parameter {name!r} has no value yet: call model.initialize(), and the model once on a batch where "
                "shapes follow from it"
            )
        if param_dtype(param.dtype) in FLOATING:
            yield name, param
