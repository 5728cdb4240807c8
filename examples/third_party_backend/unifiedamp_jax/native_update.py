"""The optimizer's own ``update`` while it has gradients of the session: they are multiplied by the loss scale."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from unifiedamp.backend import errors

CHECK = "amp_check"


def attach(optimizer: nnx.Optimizer, waits: Callable[[], bool]) -> None:
    """Make ``optimizer.update`` refuse to run while a step of the session waits.

    Args:
        optimizer: the one; gets an attribute and another class.
        waits: tells whether one does.
    """

    def check() -> None:
        if waits():
            raise errors.StepOrderError(
                "optimizer.update: this optimizer has gradients of amp.backward, which are multiplied by the loss "
                "scale until amp.unscale; amp.step(optimizer) applies them. Call it in place, or drop them by "
                "amp.discard_step(optimizer)"
            )

    detach(optimizer)
    object.__setattr__(optimizer, "__class__", _checking(type(optimizer)))
    setattr(optimizer, CHECK, check)


def detach(optimizer: nnx.Optimizer) -> None:
    """Undo :func:`attach`."""
    object.__setattr__(optimizer, "__class__", getattr(type(optimizer), "_unchecked", type(optimizer)))
    vars(optimizer).pop(CHECK, None)


@functools.cache
def _checking(kind: type) -> type:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        getattr(self, CHECK)()
        return kind.update(self, *args, **kwargs)  # type: ignore[attr-defined]  # kinds are optimizers

    body = {"update": update, "_unchecked": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), body)
