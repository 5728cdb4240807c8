"""``amp.ema``: averages are arrays in the carry, selected by ``jnp.where`` in a step that is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from unifiedamp.backend import Averaging, WeightAverage, ema_weight, errors
from unifiedamp.backend.ema import WARMUP_OFFSET

from .scaler import Averaged
from .session import JaxSession

NOT_BEGUN = -1
"""The count of averages that begin with the weights before the next applied step."""


class JaxAverage(WeightAverage):
    """The average of one module; its arrays are in ``session.carry``.

    Args:
        session: the session's state.
        model: whose.
        decay, warmup: see ``ema_weight``.
        stopped: called with this average when it stops.
    """

    def __init__(
        self, session: JaxSession, model: nnx.Module, decay: float, warmup: bool, stopped: Callable[[JaxAverage], None]
    ) -> None:
        self._stopped = stopped
        self._session, self._model, self._warmup = session, model, warmup
        self._constant = ema_weight(decay, False, 0)
        self._names = {place: names for place in range(len(session.trained)) if (names := self._names_of(place))}
        self._kept: dict[str, Any] = {}
        self._arrays: Averaged | None = None
        if self._names:
            count = jnp.asarray(NOT_BEGUN, jnp.int32)
            values = {name: _wide(value) for name, value in self._present().items()}
            session.carry.averages[id(self)] = Averaged(values, dict.fromkeys(self._names, count))

    def _names_of(self, place: int) -> list[str]:
        trained = self._session.trained[place]
        wanted = {id(variable) for _, variable in _flat(trained.model, trained.optimizer.wrt)}
        return [name for name, variable in _variables(self._model) if id(variable) in wanted]

    def _present(self) -> dict[str, Any]:
        names = {name for every in self._names.values() for name in every}
        return {name: variable.get_value() for name, variable in _variables(self._model) if name in names}

    # -- steps ---------------------------------------------------------------------------------------------------

    def before(self) -> dict[str, Any]:
        """Return the weights, before an update."""
        return self._present()

    def move(self, place: int, before: Mapping[str, Any], found: Any) -> None:
        """Move the weights of one optimizer after its update, unless ``found``; None for a step that was applied."""
        names = self._names.get(place)
        if names is None:
            return
        averages, carry, after = self._session.carry.averages, self._session.carry.averages[id(self)], self._present()
        skipped = jnp.array(False) if found is None else found
        parts = [{name: each[name] for name in names} for each in (carry.values, before, after)]
        values, count = _moved(*parts, carry.counts[place], skipped, self._constant, self._warmup)
        averages[id(self)] = Averaged(carry.values | values, carry.counts | {place: count})

    # -- reading and writing -------------------------------------------------------------------------------------

    def _carried(self) -> Averaged:
        return self._arrays or self._session.carry.averages[id(self)]

    def updates(self) -> list[int]:
        return [max(int(count), 0) for count in self._carried().counts.values()]

    def read(self) -> dict[str, Any]:
        carry, present = self._carried(), self._present()
        found = {}
        for place, names in self._names.items():
            begun = int(carry.counts[place]) > NOT_BEGUN or self._arrays is not None
            found |= {name: np.array(carry.values[name] if begun else _wide(present[name])) for name in names}
        return found

    def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
        old = self._carried()
        values = {name: jax.device_put(weights[name], array.sharding) for name, array in old.values.items()}
        counts = [jnp.asarray(count, jnp.int32) for count in updates]
        self._session.carry.averages[id(self)] = Averaged(values, dict(zip(old.counts, counts, strict=True)))

    def restart(self) -> None:
        self.write(self.read(), [NOT_BEGUN] * len(self._names))

    # -- evaluation ----------------------------------------------------------------------------------------------

    def swap_in(self) -> None:
        averages, self._kept = self.read(), self._present()
        for name, variable in _variables(self._model):
            if name in averages:
                old = self._kept[name]
                variable.set_value(jax.device_put(averages[name].astype(old.dtype), old.sharding))

    def swap_out(self) -> None:
        for name, variable in _variables(self._model):
            if name in self._kept:
                variable.set_value(self._kept[name])
        self._kept = {}

    def stop(self) -> None:
        values = {name: jnp.asarray(value) for name, value in self.read().items()}
        self._arrays = Averaged(values, self._carried().counts)
        self._session.carry.averages.pop(id(self))
        self._stopped(self)


def _wide(value: Any) -> Any:
    return value.astype(jnp.complex64 if jnp.iscomplexobj(value) else jnp.float32)


def _flat(model: Any, wrt: Any) -> Any:
    return nnx.to_flat_state(nnx.state(model, wrt, graph=True))


def _variables(model: nnx.Module) -> Iterator[tuple[str, nnx.Variable]]:
    for path, variable in _flat(model, nnx.Variable):
        if jnp.issubdtype(variable.get_value().dtype, jnp.inexact):
            yield ".".join(map(str, path)), variable


@partial(jax.jit, static_argnames=["constant", "warmup"])
def _moved(
    averages: Any, before: Any, after: Any, count: Any, skipped: Any, constant: float, warmup: bool
) -> tuple[Any, Any]:
    """Return the averages and the count after a step."""
    n = jnp.maximum(count, 0) + 1
    weight = jnp.maximum(constant, (WARMUP_OFFSET - 1.0) / (WARMUP_OFFSET + n)) if warmup else jnp.float32(constant)

    def move(average: Any, old: Any, new: Any) -> Any:
        start = jnp.where(count > NOT_BEGUN, average, _wide(old))
        return jnp.where(skipped, average, start + weight.astype(average.dtype) * (_wide(new) - start))

    return jax.tree.map(move, averages, before, after), jnp.where(skipped, count, n)


class Averages:
    """The averages of one session, as its steps see them."""

    def __init__(self) -> None:
        self.all: list[JaxAverage] = []

    def before(self) -> Callable[[int, Any], None]:
        """Return what is called with the optimizer's place, and whether its step was skipped, after an update."""
        weights = [(average, average.before()) for average in self.all]

        def after(place: int, found: Any) -> None:
            for average, before in weights:
                average.move(place, before, found)

        return after


class JaxAveraging(Averaging):
    """Averages in the carry.

    Args:
        session: the session's state.
        averages: what steps look at.
    """

    means = "arrays in the carry, selected by jnp.where"

    def __init__(self, session: JaxSession, averages: Averages) -> None:
        self._session, self._averages = session, averages

    def start(self, model: nnx.Module, decay: float, warmup: bool) -> WeightAverage:
        average = JaxAverage(self._session, model, decay, warmup, self._averages.all.remove)
        if id(average) not in self._session.carry.averages:
            raise errors.PrepareError(
                f"amp.ema: no optimizer that amp.prepare was given trains a parameter of this {type(model).__name__}"
            )
        self._averages.all.append(average)
        return average
