"""Float32 master weights of float16 parameters: the copies that MXNet's optimizers keep with ``multi_precision``.

A master lies in the updater's state of its parameter, where the optimizer's own ``create_state_multi_precision`` puts
it, so that ``Trainer.save_states`` saves it. A step does what the optimizer's ``update_multi_precision`` does, with
gradients that are float32 already: they were added up, unscaled and clipped in it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import errors

from .._types import Array, Optimizer, Parameter, Trainer
from ..mxnet_api import NDArray, call, context_of, dtype_name, from_numpy, mx, param_dtype
from ..precision.low_precision_params import Arrays, is_low_precision
from .gradients import Entry

_PROBE = np.array([3.25, 3.25], np.float16)


class MasterWeights:
    """The master weights of one Trainer.

    Args:
        trainer: a ``gluon.Trainer`` whose optimizer can keep such copies; its ``multi_precision`` is turned on.
        before: id of a Parameter → its float32 values before it was cast, which its masters start from.

    Raises:
        PrepareError: see :func:`check`.
    """

    def __init__(self, trainer: Trainer, before: Mapping[int, Arrays]) -> None:
        self._trainer = trainer
        self._before = before
        self._place = check(trainer, before)
        self._pairs: dict[tuple[int, int], Any] = {}
        self._updating: list[tuple[Array, Any]] = []
        self._adopt_states()
        trainer._optimizer.multi_precision = True
        for context, index, low in _low_precision_data(trainer):
            self._state(context, index, low)

    def _adopt_states(self) -> None:
        """Pair the states that the optimizer has of float32 parameters with their masters."""
        for context, updater in enumerate(self._trainer._updaters):
            for index, state in updater.states.items():
                param = self._trainer._params[index]
                if is_low_precision(param) and not _is_pair(self._trainer, state, self._place):
                    master = self._before[id(param)][context].as_nd_ndarray().copy()
                    updater.states[index] = (master, state) if self._place == 0 else (state, master)

    def _state(self, context: int, index: int, low: Array) -> tuple[Array, Any]:
        """Return (master, the optimizer's own state) of one parameter on one context, made where missing."""
        updater = self._trainer._updaters[context]
        if index not in updater.states:
            state = _create(updater.optimizer, index, low)
            values = self._before.get(id(self._trainer._params[index]))
            if values:
                state[self._place][:] = values[context].as_nd_ndarray()
            updater.states[index], updater.states_synced[index] = state, True
        elif not updater.states_synced.get(index, True):
            updater.states[index] = updater.sync_state_context(updater.states[index], context_of(low))
            updater.states_synced[index] = True
        state = updater.states[index]
        return state[self._place], state[1 - self._place]

    # -- one step ------------------------------------------------------------------------------------------------

    def update(self, context: int, entries: Sequence[Entry]) -> None:
        """Run the Trainer's updater on one context, over masters where there are some; cast them to the parameters."""
        updater = self._trainer._updaters[context]
        try:
            weights = [self._master_to_update(context, index, low) for index, _, low in entries]
            self._updating = list(zip([low for _, _, low in entries], weights, strict=True))
            updater([e.place for e in entries], [e.grad for e in entries], weights)
        finally:
            self.restore()

    def _master_to_update(self, context: int, index: int, low: Array) -> Any:
        """Return the weight to update, and let the updater see the optimizer's own state alone.

        It then has a float32 weight with its state, and runs the optimizer's own float32 update.
        """
        if not is_low_precision(self._trainer._params[index]):
            return low
        master, state = self._state(context, index, low)
        states = self._trainer._updaters[context].states
        self._pairs[context, index] = states[index]
        states[index] = state
        return master

    def restore(self) -> None:
        """Restore the pairs of masters and states in the updaters, and set the parameters to their masters; also after
        an update that failed in the middle. Idempotent.
        """
        for (context, index), pair in self._pairs.items():
            self._trainer._updaters[context].states[index] = pair
        self._pairs = {}
        for low, master in self._updating:
            if master is not low:
                call("amp_cast", [master], out=low.as_nd_ndarray(), dtype=dtype_name(low))
        self._updating = []

    # -- whole models --------------------------------------------------------------------------------------------

    def of(self, param: Parameter) -> Arrays | None:
        """Return a parameter's masters, one for each context; None for a float32 parameter or another Trainer's."""
        places = (index for index, one in enumerate(self._trainer._params) if one is param)
        index = next(places, None)
        return None if index is None else self.at(index)

    def at(self, index: int) -> Arrays | None:
        """Return the masters of the Trainer's parameter at a place; None for a float32 parameter, or one without a
        value.
        """
        param = self._trainer._params[index]
        if not is_low_precision(param) or param._data is None:
            return None
        return [self._state(context, index, low)[0] for context, low in enumerate(param._data)]


def check(trainer: Trainer, before: Mapping[int, Arrays]) -> int:
    """Refuse a Trainer that cannot have masters; return where its optimizer keeps them: 0 in (master, state), else 1.

    Raises:
        PrepareError: the optimizer keeps no float32 copies, or already has states in float16.
    """
    place = _place(trainer._optimizer)
    for index, state in trainer._updaters[0].states.items():
        param = trainer._params[index]
        if is_low_precision(param) and id(param) not in before and not _is_pair(trainer, state, place):
            raise errors.PrepareError(
                f"the Trainer has updated {param.name!r} in {param_dtype(param.dtype)} before amp.prepare: its state "
                "has no float32 master weights. Make a new Trainer, or give its optimizer multi_precision=True from "
                "the start"
            )
    return place


def _is_pair(trainer: Trainer, state: object, place: int) -> bool:
    pair = isinstance(state, tuple) and len(state) == 2 and isinstance(state[place], NDArray)
    return pair and bool(trainer._optimizer.multi_precision)


def create_states(trainer: Trainer) -> None:
    """Create the states of float16 parameters, without MXNet's warning: the policy asked for such parameters.

    States of parameters that trained in float32 are cast; MXNet's updates take one dtype.
    """
    for context, index, low in _low_precision_data(trainer):
        updater = trainer._updaters[context]
        if index not in updater.states:
            updater.states[index], updater.states_synced[index] = _create(updater.optimizer, index, low), True
        elif not trainer._optimizer.multi_precision:
            updater.states[index] = _narrowed(updater.states[index], dtype_name(low))


def _narrowed(state: Any, dtype: str) -> Any:
    """Return a state, None or arrays in nested tuples, with float32 arrays in ``dtype``."""
    if isinstance(state, (tuple, list)):
        return type(state)(_narrowed(each, dtype) for each in state)
    narrow = isinstance(state, NDArray) and dtype_name(state) == "float32"
    return state.astype(dtype) if narrow else state


def _low_precision_data(trainer: Trainer) -> Iterator[tuple[int, int, Array]]:
    """Yield context, index and array of each trained parameter that has 16 bits."""
    for index, param in enumerate(trainer._params):
        if is_low_precision(param) and param.grad_req != "null":
            for context, low in enumerate(param._data or ()):
                yield context, index, low


def _place(optimizer: Optimizer) -> int:
    trial = copy.copy(optimizer)
    trial.multi_precision = True
    state = _create(trial, 0, from_numpy(_PROBE, mx.cpu()))
    if isinstance(state, tuple) and len(state) == 2:
        for place, value in enumerate(state):
            if isinstance(value, NDArray) and dtype_name(value) == "float32" and (value.asnumpy() == _PROBE).all():
                return place
    raise errors.PrepareError(
        f"master_weights=True: optimizer {type(optimizer).__name__} keeps no float32 copies of float16 weights (its "
        "create_state_multi_precision makes none); use one of MXNet's own, such as 'sgd' or 'adam', or a mixed policy"
    )


def _create(optimizer: Optimizer, index: int, low: Array) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accumulating with float16", UserWarning)
        return optimizer.create_state_multi_precision(index, low.as_nd_ndarray())
