"""Updates of bfloat16 parameters without float32 master weights, and of moments that are kept in fewer bits:
``Policy.update`` and ``Policy.state_dtype``; and of emulated bfloat16 parameters, which are float32 arrays.

A step runs the Trainer's own updater over float32 values of the parameters and of the moments, which live during it,
and rounds them back on the host by ``unifiedamp.backend.rounding``. Gradients are float32. Without ``Policy.update``,
parameters and their moments are rounded to the nearest, as a fused kernel stores them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

from unifiedamp.backend import Policy, errors, rounding

from .._types import Array, HostArray, Parameter, Trainer
from ..mxnet_api import context_of, from_numpy, param_dtype
from ..precision.bfloat16_bits import bits_of, read_rounded, wide, write_rounded
from ..precision.low_precision_params import Arrays
from .gradients import Entry
from .moments import Moments


class Compensation(NamedTuple):
    """What rounding left out of a parameter.

    Attributes:
        rest: the bits of bfloat16 numbers, uint16.
        checksum: of the parameter's numbers when this was set: another one means that the parameter was written to
            otherwise, and that nothing is left out of it.
    """

    rest: HostArray
    checksum: int


class RoundedWeights:
    """The bfloat16 parameters of one Trainer.

    Args:
        trainer: a ``gluon.Trainer`` whose parameters are on one context.
        policy: one with ``update``, ``state_dtype`` or emulated bfloat16 parameters.
        name_of: returns the name of the Trainer's parameter at a place.
        emulated: ids of the Parameters whose float32 arrays hold bfloat16 numbers.

    Attributes:
        moments: what the optimizer keeps between steps.
        steps: how many updates were rounded.

    Raises:
        PrepareError: the parameters are on several contexts, or the optimizer's moments are not known.
    """

    def __init__(
        self, trainer: Trainer, policy: Policy, name_of: Callable[[int], str], emulated: Container[int] = ()
    ) -> None:
        if len(trainer._updaters) > 1:
            raise errors.PrepareError(
                f"{_cause(policy)} rounds parameters on one context, and this Trainer's are on "
                f"{len(trainer._updaters)}: initialize the model on one, or use 'mixed_bfloat16' without it"
            )
        self._trainer, self._policy, self._name_of, self._emulated = trainer, policy, name_of, emulated
        self.steps = 0
        self.moments = Moments(trainer, policy, name_of)
        self._rests: dict[int, Compensation] = {}

    # -- one step ------------------------------------------------------------------------------------------------

    def update(self, context: int, entries: Sequence[Entry]) -> None:
        """Run the Trainer's updater over float32 values, and round them to the parameters.

        Raises:
            UnsupportedError: moments are rounded, and a gradient is sparse.
        """
        sparse = [e.place for e in entries if getattr(e.grad, "stype", "default") != "default"]
        if sparse and self._policy.state_dtype:
            raise errors.UnsupportedError(
                f"state_dtype: the gradient of {self._name_of(sparse[0])} is sparse, and moments are rounded whole; "
                "make the embedding with sparse_grad=False, or leave state_dtype out"
            )
        trained = [self._widened(entry) for entry in entries]
        places = [entry.place for entry in entries]
        self.moments.widen(places)
        self._trainer._updaters[context]([e.place for e in entries], [e.grad for e in entries], trained)
        step = rounding.step_key(self._policy.update_seed, self.steps)
        for entry, values in zip(entries, trained, strict=True):
            if values is not entry.data:
                self._round(entry.place, values.asnumpy(), step)
        self.moments.narrow(places, step)
        if self._policy.update is None:
            self.moments.round_nearest([index for index in places if self.rounds(index)])
        self.steps += 1

    def restore(self) -> None:
        """Restore nothing: an interrupted update leaves the updater's states as they are."""

    def _widened(self, entry: Entry) -> Array:
        if not self.rounds(entry.place):
            return entry.data
        return from_numpy(self.values(entry.place), context_of(entry.data)).as_nd_ndarray()

    def _round(self, index: int, values: HostArray, step: int) -> None:
        if self._policy.update == "stochastic":
            key = rounding.param_key(self._name_of(index))
            write_rounded(self._array(index), rounding.stochastic(values, key, step))
        else:
            self.split(index, values)

    # -- whole parameters ----------------------------------------------------------------------------------------

    def rounds(self, index: int) -> bool:
        """Return whether the Trainer's parameter at a place has a value in bfloat16."""
        param = self._trainer._params[index]
        low = self._policy.update is not None and param_dtype(param.dtype) == "bfloat16"
        return (low or id(param) in self._emulated) and param._data is not None

    def places(self) -> list[int]:
        """Return the places of the parameters that are rounded."""
        return [index for index in range(len(self._trainer._params)) if self.rounds(index)]

    def values(self, index: int) -> HostArray:
        """Return the true weights of a parameter, float32."""
        weight, rest = read_rounded(self._array(index)), self.rest(index)
        return weight if rest is None else weight + rest

    def rest(self, index: int) -> HostArray | None:
        """Return a parameter's compensation, float32; None where it has none, or was written to since."""
        found = self._rests.get(index)
        if found is None or found.checksum != _checksum(self._array(index)):
            return None
        return wide(found.rest)

    def split(self, index: int, values: HostArray) -> None:
        """Set a parameter, and its compensation if there are some, to float32 values."""
        if self._policy.update != "kahan":
            write_rounded(self._array(index), rounding.nearest(values))
            return
        weight, rest = rounding.kahan_split(values)
        write_rounded(self._array(index), weight)
        self.put(index, rest)

    def put(self, index: int, rest: HostArray | None) -> None:
        """Set the compensation of a parameter; None for none."""
        self._rests.pop(index, None)
        if rest is not None:
            self._rests[index] = Compensation(bits_of(rest), _checksum(self._array(index)))

    def load(self, param: Parameter, values: HostArray) -> bool:
        """Set one of these parameters to float32 values; return False for another one."""
        places = [index for index in self.places() if self._trainer._params[index] is param]
        for index in places:
            self.split(index, values)
        return bool(places)

    def of(self, param: Parameter) -> Arrays | None:
        """Return a copy of a parameter's true weights, as ``MasterWeights.of`` does; None for others."""
        return next((self.at(i) for i in self.places() if self._trainer._params[i] is param), None)

    def at(self, index: int) -> Arrays | None:
        """Return a copy of the true weights of the Trainer's parameter at a place; None for others."""
        if not self.rounds(index) or self.rest(index) is None:
            return None
        return [from_numpy(self.values(index), context_of(self._array(index))).as_nd_ndarray()]

    def _array(self, index: int) -> Array:
        (array,) = self._trainer._params[index]._data or ()
        return array


def compensations(weights: RoundedWeights, name_of: Callable[[int], str]) -> Mapping[str, HostArray]:
    """Return name → compensation, float32, of the parameters that have one."""
    found = {name_of(index): weights.rest(index) for index in weights.places()}
    return {name: rest for name, rest in found.items() if rest is not None}


def _checksum(array: Array) -> int:
    return zlib.crc32(array.asnumpy().tobytes())


def _cause(policy: Policy) -> str:
    if policy.update:
        return f"update={policy.update!r}"
    return f"state_dtype={policy.state_dtype!r}" if policy.state_dtype else f"policy '{policy}'"
