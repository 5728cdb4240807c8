"""What goes with one optimizer: gradients between losses, and a ``step`` that skips after an overflow."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import unifiedamp as ua
from unifiedamp.errors import StepOrderError, UnsupportedError

from .state import amp_state

if TYPE_CHECKING:
    from .scaler import LossScaler


class Stash:
    """An initialized optimizer's part; found as ``optimizer._amp_stash``, where Apex keeps its own.

    Args:
        optimizer: prepared by ``session``.
        session: casts the model and does the steps; scales nothing.
        scalers: one per loss id.
        own: the model's parameters that the optimizer was made of; at O2 not those that it trains.
    """

    def __init__(self, optimizer: Any, session: ua.Amp, scalers: Sequence[LossScaler], own: Sequence[Any]) -> None:
        self.optimizer = optimizer
        self.session = session
        self.scalers = scalers
        self._own = own
        self._held: list[tuple[Any, Any]] = []
        self._delayed: tuple[LossScaler, int] | None = None
        self._found: list[tuple[LossScaler, ua.StepResult]] = []
        self._applying = False
        optimizer._amp_stash = self
        self._patch()

    def masters(self) -> list[tuple[Any, Any]]:
        """Return pairs of a model's parameter and the float32 master that is trained in its place."""
        return [pair for pair in zip(self._own, self._params(), strict=False) if pair[0] is not pair[1]]

    # -- around a backward pass ----------------------------------------------------------------------------------

    def check_delayed(self, scaler: LossScaler) -> None:
        """Refuse to add gradients of one scale to gradients of another.

        Raises:
            StepOrderError: they would be.
        """
        if self._delayed is not None and not self.with_gradients():
            self._delayed = None  # they were emptied since
        if self._delayed is not None and self._delayed != (scaler, scaler.moves):
            raise StepOrderError(
                f"scale_loss(loss_id={scaler.loss_id}): this {type(self.optimizer).__name__} has gradients that are "
                f"still scaled, by loss {self._delayed[0].loss_id} with delay_unscale=True, and not by this scale; "
                "leave delay_unscale out where several losses or optimizers take turns"
            )

    def before_backward(self) -> None:
        """Set true gradients aside, so that scaled ones do not mix with them."""
        if self._delayed is not None:
            return
        params = list(self._params())
        self._held = [(param, param.grad) for param in params if param.grad is not None]
        for param in (*params, *self._own):
            param.grad = None

    def collect(self) -> None:
        """Bring gradients to the parameters that the optimizer trains."""
        self.session.gradients(self.optimizer)

    def delay(self, scaler: LossScaler) -> None:
        """Note that the gradients stay scaled; what was set aside stays there."""
        self._delayed = (scaler, scaler.moves)

    def with_gradients(self) -> list[Any]:
        """Return the parameters that have a gradient."""
        return [param for param in self._params() if param.grad is not None]

    def after_unscale(self, scaler: LossScaler, outcome: ua.StepResult | None) -> None:
        """Add what was set aside, and remember what was found."""
        self._delayed = None
        if outcome is not None:
            self._found.append((scaler, outcome))
        self._put_back()

    def _put_back(self) -> None:
        for param, grad in self._held:
            param.grad = grad if param.grad is None else param.grad.add_(grad)
        self._held = []

    def _params(self) -> list[Any]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    # -- the step ------------------------------------------------------------------------------------------------

    def _patch(self) -> None:
        native = self.optimizer.step

        @functools.wraps(native)
        def step(_: Any, closure: Any = None) -> Any:
            return native() if self._applying else self.step(closure)

        # A bound method, as learning-rate schedulers take it apart.
        self.optimizer.step = types.MethodType(step, self.optimizer)

    def step(self, closure: Any = None) -> None:
        """Apply the step, or skip it when some loss since the last one overflowed; gradients are empty afterwards.

        Raises:
            UnsupportedError: there is a closure.
            StepOrderError: gradients are still scaled, or no loss went through ``scale_loss``.
        """
        if closure is not None:
            raise UnsupportedError("optimizer.step(closure): Apex takes no closure; call scale_loss, then step()")
        if self._delayed is not None:
            raise StepOrderError(
                f"{type(self.optimizer).__name__}.step(): the gradients are still scaled, the last scale_loss had "
                "delay_unscale=True; leave it out for the last loss before a step"
            )
        found, self._found = self._found, []
        overflowed = [(scaler, outcome) for scaler, outcome in found if outcome.found_inf]
        if overflowed:
            self._skip(overflowed)
            return
        if not found and all(param.grad is None for param in (*self._params(), *self._own)):
            return
        self._applying = True
        try:
            self.session.step(self.optimizer)
        finally:
            self._applying = False

    def _skip(self, overflowed: Sequence[tuple[LossScaler, ua.StepResult]]) -> None:
        for scaler, outcome in overflowed:
            done = f"reducing loss scale to {outcome.next_scale}" if scaler.dynamic else "whose loss scale is static"
            amp_state.say(f"Gradient overflow.  Skipping step, loss scaler {scaler.loss_id} {done}")
        self.session.discard_step(self.optimizer)
        self.optimizer._opt_called = True  # a scheduler made before initialize would warn that step() was not called
