"""Code that calls ``trainer.step`` itself, in the form of ``mxnet.amp``: casts without regions, a Trainer's own scaler.

``unifiedamp.compat.mxnet`` is written over this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..device.versions import autograd, cast, dtype_code
from ..training.multi_tensor import all_finite
from ..training.scaler import Scaler, TrainerScaler
from .casts import Table, ThreadState, current
from .dispatch import installed


class Everywhere:
    """Operators run under a table on every thread, outside regions too, until :meth:`end`.

    Args:
        table: the rules.
    """

    def __init__(self, table: Table) -> None:
        ThreadState.table = current.table = table
        installed.enter(self)

    def end(self) -> None:
        """Run operators as they are again. A region that is open on another thread now leaves its own rules behind."""
        ThreadState.table = current.table = None
        installed.leave(self)


class AdoptedScaler(TrainerScaler):
    """The scaler of a Trainer that is stepped by its own ``step``.

    Args:
        scaler: the session's.
        trainer: whose gradients and ``_scale`` it looks after.
        after_step: called after each step.
    """

    def __init__(self, scaler: Scaler, trainer: Any, after_step: Callable[[], None]) -> None:
        super().__init__(scaler)
        self._trainer, self._after_step = trainer, after_step
        self._original = trainer._scale
        self._found: bool | None = None

    @contextmanager
    def scaled(self, loss: Any) -> Iterator[Any]:
        """Yield the loss (of any shape, or a list) times the scale, in float32; the next step divides by it."""
        scale, self._found = self.loss_scale, None
        self._trainer._scale = self._original / scale
        # The product is recorded also where the call stands outside autograd.record().
        with autograd.record(train_mode=autograd.is_training()):
            many = isinstance(loss, (list, tuple))
            products = [_float32(one) * scale for one in (loss if many else [loss])]
        yield products if many else products[0]

    def unscale(self) -> None:
        """Decide finiteness on the raw gradients, then divide them by the scale; again is harmless."""
        if self._found is not None:
            return
        gradients = list(_fresh(self._trainer._params))
        self._found = not all_finite(gradients)
        for gradient in gradients:
            gradient /= self.loss_scale
        self._trainer._scale = self._original

    def has_overflow(self, params: Sequence[Any]) -> bool:
        """Tell ``trainer.step`` whether to skip, and move the scale; what :meth:`unscale` found is not forgotten."""
        found = bool(self._found) or not all_finite(_fresh(params))
        self._found = None
        self._scaler.count(found)
        self._scaler.update()
        self._after_step()
        return found


def _fresh(params: Sequence[Any]) -> Iterator[Any]:
    """Yield the gradients that backward passes wrote since the last step."""
    for param in params:
        if param._grad is not None:
            for data, gradient in zip(param._data, param._grad, strict=True):
                if data._fresh_grad:
                    yield gradient


def _float32(loss: Any) -> Any:
    return loss if dtype_code(loss) == 0 else cast(loss, "float32")
