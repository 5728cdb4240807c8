"""The scaler of a Trainer that is stepped by its own ``step``, in the form of ``mxnet.amp.init_trainer``.

For ``unifiedamp.compat.mxnet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._types import Array, Parameter, Trainer
from ..mxnet_api import autograd, cast, dtype_code
from .multi_tensor import all_finite
from .scaler import SessionScaler, TrainerScaler


class AdoptedScaler(TrainerScaler):
    """Scales losses, and divides gradients, for one Trainer.

    Args:
        scaler: the session's.
        trainer: the Trainer, whose ``_scale`` is set while its gradients are scaled.
        after_step: called after each step.
    """

    def __init__(self, scaler: SessionScaler, trainer: Trainer, after_step: Callable[[], None]) -> None:
        super().__init__(scaler)
        self._trainer, self._after_step = trainer, after_step
        self._original = trainer._scale
        self._found: bool | None = None

    @contextmanager
    def scaled(self, loss: Array | Sequence[Array]) -> Iterator[Array | list[Array]]:
        """Yield the loss (of any shape, or a list) times the scale, in float32; the next step divides by it."""
        scale, self._found = self.loss_scale, None
        self._trainer._scale = self._original / scale
        # The product is recorded also if the call is outside autograd.record().
        with autograd.record(train_mode=autograd.is_training()):
            losses: Any = loss if isinstance(loss, (list, tuple)) else [loss]
            products = [_float32(one) * scale for one in losses]
        yield products if losses is loss else products[0]

    def unscale(self) -> None:
        """Decide finiteness on the raw gradients, then divide them by the scale. Idempotent."""
        if self._found is not None:
            return
        gradients = list(_fresh(self._trainer._params))
        self._found = not all_finite(gradients)
        for gradient in gradients:
            gradient /= self.loss_scale
        self._trainer._scale = self._original

    def has_overflow(self, params: Sequence[Parameter]) -> bool:
        """Decide whether ``trainer.step`` skips, also by what :meth:`unscale` found, and update the scale."""
        found = bool(self._found) or not all_finite(_fresh(params))
        self._found = None
        self.session.count(found)
        self.session.update()
        self._after_step()
        return found


def _fresh(params: Sequence[Parameter]) -> Iterator[Array]:
    """Yield the gradients that backward passes wrote since the last step."""
    for param in params:
        if param._grad is not None:
            for data, gradient in zip(param._data or (), param._grad, strict=True):
                if data._fresh_grad:
                    yield gradient


def _float32(loss: Array) -> Array:
    return loss if dtype_code(loss) == 0 else cast(loss, "float32")
