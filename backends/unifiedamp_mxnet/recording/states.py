"""Weights and Trainers' states at the end of a recorded step: how their values are distributed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from unifiedamp.backend import recording

from .._types import Array, Trainer
from ..device.arrays import to_numpy
from ..models.weights import FLOATING, MastersOf
from ..mxnet_api import cast, dtype_name
from ..training.prepared_optimizer import PreparedOptimizer
from .reductions import count, read

NAMES = {"Adam": ("mean", "var"), "AdamW": ("mean", "var"), "SGD": ("momentum",), "NAG": ("momentum",)}
"""Class of an optimizer → names of its states in the order in which MXNet keeps them; those of others are numbers."""


def kept_weights(optimizers: Iterable[PreparedOptimizer], masters_of: MastersOf) -> dict[str, Array]:
    """Return copies of the trained weights, by name."""
    rows = [row for prepared in optimizers for row in _arrays(prepared, masters_of)]
    return {param: array.copy() for param, name, array in rows if name == recording.WEIGHT}


def states(
    optimizers: Iterable[PreparedOptimizer], masters_of: MastersOf, kept: Mapping[str, Array]
) -> recording.States:
    """Return what each parameter's weight, its update and its states hold; of several contexts, which hold the same,
    the first's. ``kept``: see :func:`kept_weights`.
    """
    found: dict[str, dict[str, recording.StateCounts]] = {}
    for prepared in optimizers:
        for param, name, array in _with_updates(prepared, masters_of, kept):
            counts, _ = read(count([array], 1.0))
            norm = float(np.linalg.norm(to_numpy(array).astype(np.float64)))
            found.setdefault(param, {})[name] = recording.StateCounts(
                counts.astype(np.int64).tolist(), norm, dtype_name(array)
            )
    return found


def _with_updates(
    prepared: PreparedOptimizer, masters_of: MastersOf, kept: Mapping[str, Array]
) -> Iterator[tuple[str, str, Array]]:
    for param, name, array in _arrays(prepared, masters_of):
        yield param, name, array
        if name == recording.WEIGHT and param in kept:
            yield param, recording.UPDATE, cast(array, "float32") - cast(kept[param], "float32")


def _arrays(prepared: PreparedOptimizer, masters_of: MastersOf) -> Iterator[tuple[str, str, Array]]:
    trainer: Trainer = prepared.trainer
    kept: Any = trainer._updaters[0].states
    names = NAMES.get(type(trainer._optimizer).__name__, ())
    for index, param in enumerate(trainer._params):
        if param.grad_req == "null":
            continue
        masters = masters_of(param) or param.list_data()
        yield prepared.buffer.name(index), recording.WEIGHT, masters[0]
        found = [each for each in _leaves(kept.get(index)) if each is not masters[0] and each.shape == masters[0].shape]
        for place, array in enumerate(each for each in found if dtype_name(each) in FLOATING):
            yield prepared.buffer.name(index), names[place] if place < len(names) else f"state{place}", array


def _leaves(state: Any) -> Iterator[Array]:
    if isinstance(state, (tuple, list)):
        for each in state:
            yield from _leaves(each)
    elif state is not None:
        yield state
