"""Optimizers of open sessions that keep a part of the weights or moments: no other session can step them right."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

from ..backend import SessionSpec
from ..errors import PrepareError

_HOLDERS: weakref.WeakKeyDictionary[Any, SessionSpec] = weakref.WeakKeyDictionary()
"""Optimizer → the session's."""


def hold(optimizers: Iterable[Any], spec: SessionSpec) -> None:
    """Reserve optimizers for a session with master weights, rounded updates or moments in fewer bits."""
    if spec.master_weights or spec.policy.update or spec.policy.state_dtype:
        for optimizer in optimizers:
            with contextlib.suppress(TypeError):  # a plain value, such as a tuple of functions, holds no state
                _HOLDERS[optimizer] = spec


def refuse_held(optimizers: Iterable[Any], spec: SessionSpec) -> None:
    """Refuse optimizers that another open session holds.

    Raises:
        PrepareError: naming the optimizer and that session's policy.
    """
    for optimizer in optimizers:
        with contextlib.suppress(TypeError):
            holder = _HOLDERS.get(optimizer, spec)
            if holder is not spec:
                raise PrepareError(
                    f"amp.prepare: another session, with policy '{holder.policy}', trains with this "
                    f"{type(optimizer).__name__} and keeps a part of its weights or moments: call close() on that "
                    "session first, or make a new optimizer"
                )


def release(spec: SessionSpec) -> None:
    """End what :func:`hold` did for a session."""
    for optimizer, holder in [*_HOLDERS.items()]:
        if holder is spec:
            del _HOLDERS[optimizer]
