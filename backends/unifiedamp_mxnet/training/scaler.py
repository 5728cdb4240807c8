"""The session's loss scale: its state, the scaled loss, and the scaler object that Gluon's Trainer looks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from unifiedamp.backend import LossScale, ScaleState, errors

from ..device.numpy_semantics import in_numpy_semantics
from ..device.versions import NDArray, autograd, call, cast, context_of, dtype_code, upstream
from .multi_tensor import all_finite


class Scaler:
    """One scale for all Trainers of a session; plain numbers, since MXNet decides on the host whether to step.

    Args:
        loss_scale: the settings in force.
    """

    def __init__(self, loss_scale: LossScale) -> None:
        self.settings = loss_scale
        self.enabled = loss_scale.enabled
        self.state = loss_scale.initial_state()
        self.applied = self.skipped = 0
        self._found: dict[Any, bool] = {}
        self._heads: dict[Any, Any] = {}

    def count(self, found_inf: bool, key: Any = None) -> None:
        """Note the outcome of one optimizer's step, under its key."""
        if found_inf:
            self.skipped += 1
        else:
            self.applied += 1
        self._found[key] = found_inf or self._found.get(key, False)

    def forget(self, key: Any) -> None:
        """Forget what an optimizer's steps found in this iteration."""
        self._found.pop(key, None)

    def update(self) -> None:
        """End the iteration: update the scale by what its steps found."""
        found, self._found = self._found, {}
        if found and self.enabled:
            self.state = self.settings.next_state(self.state, any(found.values()))

    def read(self) -> ScaleState:
        """Return scale and counters."""
        return replace(self.state, applied_steps=self.applied, skipped_steps=self.skipped)

    def write(self, state: ScaleState) -> None:
        """Set scale and counters."""
        self.state = state
        self.applied, self.skipped = state.applied_steps, state.skipped_steps

    def head(self, loss: Any, factor: float) -> Any:
        """Return the gradient that starts the backward pass: ``factor`` in the loss's shape, on its context.

        Starting from the scale is the same as differentiating ``loss * scale``, without the product.
        """
        key = (context_of(loss), loss.shape, type(loss))
        found = self._heads.get(key)
        if found is None or found[0] != factor:
            with autograd.pause():
                found = self._heads[key] = (factor, call("ones_like", [loss]) * factor)
        return found[1]


class ScaledLosses:
    """What ``with amp.scale_loss(...)`` gives; its own context manager.

    Args:
        scaler: whose scale is used.
        losses: scalar losses, one for each context.
        factor: scale / accumulate_steps.
        run: makes the backward pass for losses and their heads.
        check: refuses gradients of other backward passes.
        single: whether the user gave one loss, not a list.
    """

    __slots__ = ("_check", "_factor", "_losses", "_run", "_scaler", "_single", "_used")

    def __init__(
        self,
        scaler: Scaler,
        losses: list[Any],
        factor: float,
        run: Callable[..., None],
        check: Callable[[], None],
        single: bool,
    ) -> None:
        self._scaler, self._losses, self._factor, self._run, self._single = scaler, losses, factor, run, single
        self._check = check
        self._used = False

    def __enter__(self) -> ScaledLosses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._used:
            self._check()

    @property
    @in_numpy_semantics
    def value(self) -> Any:
        """The loss in float32, times the scale, divided by ``accumulate_steps``; a list for a list of losses."""
        with autograd.record():
            values = [loss * self._factor for loss in self._losses]
        return values[0] if self._single else values

    @in_numpy_semantics
    def backward(self) -> None:
        """Differentiate the scaled loss; its gradients are added to the windows of the Trainers named."""
        self._used = True
        self._check()
        if self._factor == 1.0:
            self._run(self._losses, None)
        else:
            self._run(self._losses, [self._scaler.head(loss, self._factor) for loss in self._losses])


def read_losses(loss: Any) -> list[Any]:
    """Return the losses as float32 scalars that gradients can be taken of.

    Raises:
        LossError: something is not an array, or holds more than one number.
    """
    losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
    for position, one in enumerate(losses):
        if not isinstance(one, NDArray):
            raise errors.LossError(f"amp.scale_loss: the loss must be an MXNet array, got {type(one).__name__}")
        if one.size != 1:
            raise errors.LossError(
                f"amp.scale_loss: the loss must be a scalar, got shape {one.shape}; take its mean() inside autocast"
            )
        if dtype_code(one) != 0:
            with autograd.record():
                losses[position] = cast(one, "float32")
    return losses


class TrainerScaler(upstream.LossScaler):  # type: ignore[misc]
    """The object in ``trainer._amp_loss_scaler``: MXNet's own class, over the session's scale.

    ``trainer.step`` and ``mxnet.amp.scale_loss`` called past the session use it: one scale, every context looked at.
    """

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        self._scaler = scaler

    @property
    def loss_scale(self) -> float:
        """The scale that the next loss will be multiplied by."""
        return self._scaler.state.scale

    def has_overflow(self, params: Sequence[Any]) -> bool:
        """Look at the gradients on every context, count the step and move the scale."""
        found = not all_finite(grad for param in params if param._grad is not None for grad in param._grad)
        self._scaler.count(found)
        self._scaler.update()
        return found
