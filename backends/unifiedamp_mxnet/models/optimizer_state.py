"""A Trainer's states as arrays, under the numbers of its parameters, and its counts of updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unifiedamp.backend import errors

from .._types import Array, Trainer
from ..device.arrays import to_numpy
from ..device.numpy_semantics import in_numpy_semantics
from ..mxnet_api import cast, context_of, dtype_name, from_numpy
from ..training.moments import Kept

COUNT = "updates"


@in_numpy_semantics
def read(trainer: Trainer) -> dict[str, Any]:
    """Return "3.0" → array of a state of parameter 3, and "3/updates" → how often it was updated."""
    optimizer: Any = trainer._optimizer
    found = {}
    for index, state in sorted(trainer._updaters[0].states.items()):
        found.update({name: _values(array) for name, array in _leaves(str(index), state)})
    counts = {f"{index}/{COUNT}": np.asarray(count) for index, count in sorted(optimizer._index_update_count.items())}
    return {**found, **counts}


def _values(array: Array | Kept) -> Any:
    return array.asnumpy() if isinstance(array, Kept) else to_numpy(array)


def _leaves(name: str, state: Any) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a state: none, one, or nested tuples of them."""
    if isinstance(state, (tuple, list)):
        for place, each in enumerate(state):
            yield from _leaves(f"{name}.{place}", each)
    elif state is not None:
        yield name, state


def check(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Check that a state is of these parameters.

    Raises:
        CheckpointError: a number or shape is of no parameter.
    """
    for name, value in state.items():
        index = name.partition("/")[0].partition(".")[0]
        if not index.isdecimal() or int(index) >= len(trainer._params):
            raise errors.CheckpointError(
                f"the Trainer has {len(trainer._params)} parameters, none for the state {name!r}"
            )
        wanted = tuple(trainer._params[int(index)].shape)
        if not name.endswith(f"/{COUNT}") and value.shape and tuple(value.shape) != wanted:
            raise errors.CheckpointError(
                f"the Trainer's {name!r} has shape {tuple(value.shape)}, its parameter {wanted}"
            )


@in_numpy_semantics
def write(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Set the states on every context, and the counts of updates."""
    optimizer: Any = trainer._optimizer
    counts = {int(name.partition("/")[0]): int(value) for name, value in state.items() if name.endswith(f"/{COUNT}")}
    for context, updater in enumerate(trainer._updaters):
        optimizer._all_index_update_counts.setdefault(context, {}).update(counts)
        for index in sorted({int(name.partition(".")[0]) for name in state if "/" not in name}):
            if updater.states.get(index) is None or any(
                isinstance(e, Kept) for _, e in _leaves("", updater.states[index])
            ):
                updater.states[index] = optimizer.create_state_multi_precision(index, _trained(trainer, index, context))
            updater.states_synced[index] = True
            for name, array in _leaves(str(index), updater.states[index]):
                if name in state:
                    values: Any = from_numpy(state[name], context_of(array))
                    array[:] = values.as_nd_ndarray().astype(array.dtype)
    optimizer.num_update = max([optimizer.num_update, *counts.values()])


def _trained(trainer: Trainer, index: int, context: int) -> Array:
    """Return what an updater trains of a parameter: of a bfloat16 one, its float32 values."""
    weight = trainer._params[index].list_data()[context].as_nd_ndarray()
    return cast(weight, "float32") if dtype_name(weight) == "bfloat16" else weight
