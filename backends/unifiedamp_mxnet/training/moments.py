"""Optimizers' moments between steps, in the dtype of ``Policy.state_dtype``.

They stay in the updater's states, between steps as :class:`Kept`, on the host, since MXNet has no arrays of float8, and
no operations on the bits of bfloat16. ``Trainer.save_states`` saves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import Policy, converted, errors, rounding, state_rounding

from .._types import HostArray, Trainer
from ..mxnet_api import NDArray, context_of, from_numpy, mx
from ..precision.bfloat16_bits import bits_of, wide, write_rounded

NAMES: dict[str, tuple[str, ...]] = {"SGD": ("velocity",), "Adam": ("first_moment", "second_moment")}
"""Class of ``mxnet.optimizer`` → our names of the moments in its state, in order."""


class Kept:
    """A moment of one parameter between steps.

    Args:
        values: float32.
        dtype: ``Policy.state_dtype``.
        moment: our name of it.
        key: from ``state_rounding.moment_key``.
        step: from ``rounding.step_key``.
    """

    def __init__(self, values: HostArray, dtype: str, moment: str, key: int, step: int) -> None:
        self.shape, self._squares = values.shape, state_rounding.MOMENTS[moment]
        self._scales: HostArray | None = None
        if dtype == "bfloat16":
            self._codes = bits_of(rounding.stochastic(values, key, step))
        else:
            self._codes, self._scales = state_rounding.pack(values, self._squares, key, step)

    def asnumpy(self) -> HostArray:
        """Return the values, float32."""
        if self._scales is None:
            return wide(self._codes).reshape(self.shape)
        values: HostArray = state_rounding.unpack(self._codes, self._scales, self._squares, self.shape)
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Saved as a float32 array, which any Trainer loads."""
        return from_host, (self.asnumpy(),)

    @property
    def nbytes(self) -> int:
        """Bytes, of the scales too."""
        return int(self._codes.nbytes + (0 if self._scales is None else self._scales.nbytes))


def from_host(values: HostArray) -> NDArray:
    """Return a float32 array on the CPU."""
    array: NDArray = from_numpy(values, mx.cpu()).as_nd_ndarray()
    return array


class Moments:
    """The moments of one Trainer.

    Args:
        trainer: a ``gluon.Trainer`` whose parameters are on one context.
        policy: the session's.
        name_of: returns the name of the Trainer's parameter at a place.

    Raises:
        PrepareError: the optimizer's moments are not known.
    """

    def __init__(self, trainer: Trainer, policy: Policy, name_of: Callable[[int], str]) -> None:
        self._trainer, self._policy, self._name_of = trainer, policy, name_of
        kind: Any = type(trainer._optimizer)
        known = kind.__module__.startswith("mxnet.")
        self._names = NAMES.get(kind.__name__, ()) if known else ()
        if policy.state_dtype and not self._names:
            raise errors.PrepareError(
                f"state_dtype={policy.state_dtype!r}: the moments of this {kind.__name__} are not known; use one of "
                f"mxnet.optimizer's {', '.join(NAMES)}, or leave state_dtype out"
            )

    def widen(self, places: Sequence[int]) -> None:
        """Make the moments of parameters float32 arrays, for a step; ``places``: of the parameters."""
        updater = self._trainer._updaters[0]
        for index in places:
            state = updater.states.get(index)
            if any(isinstance(each, Kept) for each in _parts(state)):
                (array, *_) = self._trainer._params[index]._data or ()
                context = context_of(array)
                wide_parts = [
                    from_numpy(each.asnumpy(), context).as_nd_ndarray() if isinstance(each, Kept) else each
                    for each in _parts(state)
                ]
                updater.states[index] = _like(state, wide_parts)

    def narrow(self, places: Sequence[int], step: int) -> None:
        """Round the moments of parameters after a step; ``step``: the key of this step."""
        dtype = self._policy.state_dtype
        for index in places if dtype else ():
            state = self._trainer._updaters[0].states.get(index)
            if state is None:
                continue
            kept = []
            for moment, each in zip(self._names, _parts(state), strict=True):
                key = state_rounding.moment_key(self._name_of(index), moment)
                kept.append(Kept(each.asnumpy(), str(dtype), moment, key, step))
            self._trainer._updaters[0].states[index] = _like(state, kept)

    def round_nearest(self, places: Sequence[int]) -> None:
        """Round the float32 moments of parameters to bfloat16, in their arrays."""
        for index in places:
            for each in _parts(self._trainer._updaters[0].states.get(index)):
                if isinstance(each, NDArray):
                    write_rounded(each, rounding.nearest(each.asnumpy()))

    def all(self) -> Iterator[tuple[int, str, Kept | NDArray]]:
        """Yield (place of a parameter, our name of a moment, what is kept of it)."""
        for index, state in sorted(self._trainer._updaters[0].states.items()):
            for moment, each in zip(self._names, _parts(state), strict=False):
                yield index, moment, each

    def write(self, given: Mapping[str, Any], applied: int) -> None:
        """Set moments, in float32 until the next step, and the optimizer's counts; see ``OptimizerStates.write``."""
        optimizer: Any = self._trainer._optimizer
        updater = self._trainer._updaters[0]
        names = self._names if getattr(optimizer, "momentum", True) else ()  # counts go on without moments too
        for index, param in enumerate(self._trainer._params):
            arrays = [converted(given, self._name_of(index), each, optimizer.learning_rate) for each in names]
            if param._data is None or any(array is None for array in arrays):
                continue
            (place, *_) = param._data
            parts = [from_numpy(np.asarray(array, np.float32), context_of(place)).as_nd_ndarray() for array in arrays]
            if parts:
                updater.states[index] = tuple(parts) if len(parts) > 1 else parts[0]
                updater.states_synced[index] = True
            optimizer._all_index_update_counts.setdefault(0, {})[index] = applied
        optimizer.num_update = max(optimizer.num_update, applied)

    def applied(self) -> int:
        """Return how many steps the optimizer has counted."""
        return int(self._trainer._optimizer.num_update)

    def check_known(self) -> None:
        """Raise ``UnsupportedError`` where the optimizer's moments are not known."""
        if not self._names:
            raise errors.UnsupportedError(
                f"the moments of this {type(self._trainer._optimizer).__name__} are not known; those of "
                f"mxnet.optimizer's {', '.join(NAMES)} are"
            )

    def release(self) -> None:
        """Make all moments float32, for the Trainer's own steps."""
        self.widen(list(self._trainer._updaters[0].states))


def _parts(state: Any) -> Sequence[Any]:
    if state is None:
        return ()
    return state if isinstance(state, (tuple, list)) else (state,)


def _like(state: Any, parts: Sequence[Any]) -> Any:
    """Return parts in the form of a state: one, or a tuple of them."""
    return tuple(parts) if isinstance(state, (tuple, list)) else parts[0]
