"""Refuses parameters that were cast or moved after ``prepare``: the Trainer and the policy are made for what they were.

Gluon gives a parameter other arrays then, so that a region compares no more than which arrays there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from unifiedamp.backend import errors

from .._types import Array, Parameter
from ..mxnet_api import NUMPY_API, context_of, param_dtype


class _Kind(NamedTuple):
    """The dtype of a parameter, and the contexts that it is on."""

    dtype: str
    contexts: str


class ParamDtypes:
    """The dtypes and contexts that a Trainer's parameters had when it was prepared.

    Args:
        params: the Trainer's.
        name: returns the name of the parameter at a place.
    """

    def __init__(self, params: Sequence[Parameter], name: Callable[[int], str]) -> None:
        self._params, self._name = params, name
        self._arrays: list[Sequence[Array] | None] = [param._data for param in params]
        self._kinds = [_kind(param) for param in params]

    def check(self) -> None:
        """Refuse parameters that have another dtype or are elsewhere now.

        Raises:
            ParamDtypeError: one has another dtype.
            PrepareError: one is on other contexts.
        """
        for index, param in enumerate(self._params):
            if param._data is not self._arrays[index]:
                self._look(index, param)

    def _look(self, index: int, param: Parameter) -> None:
        before, now = self._kinds[index], _kind(param)
        if before is not None and now is not None and before != now:
            raise _refusal(self._name(index), before, now)
        self._arrays[index], self._kinds[index] = param._data, now or before


def _kind(param: Parameter) -> _Kind | None:
    """Return what a parameter is; None where it is not initialized."""
    if param._data is None:
        return None
    return _Kind(param_dtype(param.dtype), ", ".join(str(context_of(data)) for data in param._data))


def _refusal(name: str, before: _Kind, now: _Kind) -> errors.PrepareError | errors.ParamDtypeError:
    if before.dtype != now.dtype:
        undo = "" if before.dtype == "bfloat16" else f" (model.cast({before.dtype!r}) undoes it)"
        return errors.ParamDtypeError(
            f"amp.autocast: parameter {name!r} is {now.dtype} now; it was {before.dtype} when it was prepared, which "
            f"its Trainer and the session's policy are made for: do not cast a prepared model{undo}"
        )
    call = "reset_device" if NUMPY_API else "reset_ctx"
    return errors.PrepareError(
        f"amp.autocast: parameter {name!r} is on {now.contexts} now; it was on {before.contexts} when it was prepared, "
        f"where its Trainer updates it: call {call} before the Trainer is made and amp.prepare is called "
        f"({call} to {before.contexts} undoes it)"
    )
