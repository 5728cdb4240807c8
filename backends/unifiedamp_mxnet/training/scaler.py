"""The session's loss scale on MXNet, and the scaler object that Gluon's Trainer looks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from unifiedamp.backend import LossScale, ScaleState

from .._types import Array, Parameter, Trainer
from ..mxnet_api import autograd, call, context_of, upstream
from ..patches import AttributePatch, patched
from .multi_tensor import all_finite


class SessionScaler:
    """One scale for all Trainers of a session; plain numbers, since MXNet decides on the host whether to step.

    Args:
        loss_scale: the settings in force; they hold the rules by which the scale is updated.
    """

    def __init__(self, loss_scale: LossScale) -> None:
        self._settings = loss_scale
        self.enabled = loss_scale.enabled
        self.state = loss_scale.initial_state()
        self._applied = self._skipped = 0
        self._found: dict[object, bool] = {}
        self._heads: dict[object, tuple[float, Array]] = {}

    def count(self, found_inf: bool, key: object = None) -> None:
        """Count one optimizer's step, under its key; it has one in an iteration."""
        if found_inf:
            self._skipped += 1
        else:
            self._applied += 1
        self._found[key] = found_inf

    def forget(self, key: object) -> None:
        """Forget what an optimizer's steps found in this iteration."""
        self._found.pop(key, None)

    def update(self) -> None:
        """End the iteration: update the scale by what its steps found."""
        found, self._found = self._found, {}
        if found and self.enabled:
            self.state = self._settings.next_state(self.state, any(found.values()))

    def read(self) -> ScaleState:
        """Return scale and counters."""
        return replace(self.state, applied_steps=self._applied, skipped_steps=self._skipped)

    def write(self, state: ScaleState) -> None:
        """Set scale and counters."""
        self.state = state
        self._applied, self._skipped = state.applied_steps, state.skipped_steps

    def head_gradient(self, loss: Array, factor: float) -> Array:
        """Return the gradient that starts the backward pass: ``factor`` in the loss's shape, on its context.

        Starting from the scale is the same as differentiating ``loss * scale``, without the product.
        """
        key = (context_of(loss), loss.shape, type(loss))
        found = self._heads.get(key)
        if found is None or found[0] != factor:
            with autograd.pause():
                found = self._heads[key] = (factor, call("ones_like", [loss]) * factor)
        return found[1]


class TrainerScaler(upstream.LossScaler):  # type: ignore[misc]  # MXNet has no type hints
    """The object in ``trainer._amp_loss_scaler``: MXNet's own class, over the session's scale.

    ``trainer.step`` and ``mxnet.amp.scale_loss`` called past the session use it: one scale, all contexts checked.

    Args:
        scaler: the session's.
    """

    def __init__(self, scaler: SessionScaler) -> None:
        super().__init__()
        self.session = scaler

    @property
    def loss_scale(self) -> float:
        """The scale that the next loss will be multiplied by."""
        return self.session.state.scale

    def has_overflow(self, params: Sequence[Parameter]) -> bool:
        """Check the gradients on every context, count the step and update the scale."""
        found = not all_finite(_gradients(params))
        self.session.count(found)
        self.session.update()
        return found


def _gradients(params: Iterable[Parameter]) -> Iterator[Array]:
    for param in params:
        yield from param._grad or ()


def attach_scaler(trainer: Trainer, scaler: TrainerScaler) -> AttributePatch:
    """Give a Trainer the scaler that its own ``step`` asks; return the patch, to be undone."""
    values: dict[str, Any] = {"_amp_loss_scaler": scaler, "_amp_original_scale": trainer._scale}
    return patched(trainer, **values)
