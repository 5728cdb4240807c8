"""Weights and optimizer states at the end of a recorded step: how their values are distributed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import recording

from .._types import Tensor, Variable
from ..device.numerics import real_values
from ..internals import long_name, native, trained_variables
from ..training.prepared_optimizer import PreparedOptimizer
from .buckets import count_now


def kept_weights(optimizers: Sequence[PreparedOptimizer]) -> dict[str, Tensor]:
    """Return copies of the trained weights, by name."""
    trained = [item for prepared in optimizers for item in prepared.params.trained.items()]
    return {name: tf.identity(tf.convert_to_tensor(native(variable))) for name, variable in trained}


def states(optimizers: Sequence[PreparedOptimizer], kept: Mapping[str, Tensor]) -> recording.States:
    """Return what each parameter's weight, its update and its optimizer states hold; waits for the device once.

    Of several replicas, which hold the same, the first one's. ``kept``: see :func:`kept_weights`.
    """
    rows = [row for prepared in optimizers for row in _tensors(prepared, kept)]
    if not rows:
        return {}
    counts, norms = (part.numpy() for part in map(tf.stack, zip(*(_counted(each) for *_, each in rows), strict=True)))
    found: dict[str, dict[str, recording.StateCounts]] = {}
    for (param, name, tensor), held, norm in zip(rows, counts.tolist(), norms.tolist(), strict=True):
        found.setdefault(param, {})[name] = recording.StateCounts(held, norm, tensor.dtype.name)
    return found


def _tensors(prepared: PreparedOptimizer, kept: Mapping[str, Tensor]) -> Iterator[tuple[str, str, Tensor]]:
    for param, name, variable in _variables(prepared):
        tensor = tf.convert_to_tensor(variable)
        yield param, name, tensor
        if name == recording.WEIGHT and param in kept:
            yield param, recording.UPDATE, _wide(tensor) - _wide(kept[param])


def _variables(prepared: PreparedOptimizer) -> Iterator[tuple[str, str, Variable]]:
    """Yield parameter, name and variable of each weight and state of its shape."""
    trained = {name: native(variable) for name, variable in prepared.params.trained.items()}
    yield from ((name, recording.WEIGHT, variable) for name, variable in trained.items())
    taken: Counter[tuple[str, str]] = Counter()
    inner: Any = prepared.inner
    known = {id(native(each)): each for each in trained_variables(inner) or ()}
    owners = [(name, known.get(id(variable), variable)) for name, variable in trained.items()]
    for variable in inner.variables:
        # The longest name is the variable's own ("dense_1/kernel" ends as "1/kernel"); of equal names, by order.
        fitting = [(name, owner, _state_of(variable, owner)) for name, owner in owners if _fits(variable, owner)]
        named = [(name, state, len(long_name(owner))) for name, owner, state in fitting if state]
        longest = [(name, state) for name, state, size in named if size == max(each[2] for each in named)]
        if longest:
            place = (long_name(variable), longest[0][1])
            name, state = longest[min(taken[place], len(longest) - 1)]
            taken[place] += 1
            yield name, state, native(variable)


def _state_of(variable: Variable, trained: Variable) -> str | None:
    """Return the name of a state that an optimizer made for a variable that it trains; None for another variable.

    Keras 3 names it "adam/dense_kernel_momentum", Keras 2 "m/dense/kernel".
    """
    own, owner = long_name(variable), long_name(trained)
    if own.endswith(f"/{owner}"):
        return own.removesuffix(f"/{owner}")
    name, prefix = own.rpartition("/")[2], owner.replace("/", "_") + "_"
    return name.removeprefix(prefix) if name.startswith(prefix) else None


def _fits(variable: Variable, owner: Variable) -> bool:
    dtype = native(variable).dtype
    return variable.shape == owner.shape and (dtype.is_floating or dtype.is_complex)


def _wide(tensor: Tensor) -> Tensor:
    return tf.cast(real_values(tensor), tf.float32)


def _counted(tensor: Tensor) -> tuple[Tensor, Tensor]:
    values = _wide(tensor)
    return count_now(values, tf.constant(1.0))[0], tf.norm(values)
