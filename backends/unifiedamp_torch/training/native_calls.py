"""Refuses ``loss.backward()``, ``optimizer.step()``, ``GradScaler.unscale_`` and the clipping of scaled gradients
beside the session's calls while a scaled loss is pending.

Either would train on gradients of the wrong size. The first is detected by gradients that exist before the first scaled
loss is differentiated; afterwards that loss's ``backward`` refuses, and further losses have a hook that fires when a
backward pass reaches them other than through the scaled loss. (A hook on each first loss would cost a small model's
step two percent.) The second is detected by a hook before the optimizer's step.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from unifiedamp.backend import errors

from ..device.kinds import traits
from ..distributed.local_passes import accumulates
from ..patches import CLIPPING, watch_torch
from .gradients import has_gradients, parameters
from .master_weights import MasterWeights
from .unprepared_optimizers import UnpreparedOptimizers

Optimizer = torch.optim.Optimizer


class _Stepping(threading.local):
    """The optimizer whose ``step`` a session runs in this thread."""

    optimizer: Any = None


class _Passes:
    """The backward passes of scaled losses, of all sessions: the autograd engine's threads read them.

    Attributes:
        running: ids of the scaled losses whose ``backward`` runs.
        by_hand: the engine's numbers of the last passes that began at a ``scaled_loss.value``.
    """

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.by_hand: deque[int] = deque(maxlen=16)


_stepping = _Stepping()
passes = _Passes()


def run_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
    """Return ``optimizer.step(...)``, run by a session."""
    before = _stepping.optimizer
    try:
        _stepping.optimizer = optimizer
        return optimizer.step(*args, **kwargs)
    finally:
        _stepping.optimizer = before


def note_pass(_: torch.Tensor) -> None:
    """Hook of a scaled loss that the user has: the running backward pass began there."""
    passes.by_hand.append(torch._C._current_graph_task_id())


@dataclass
class Pending:
    """One optimizer's scaled losses since its last step.

    Attributes:
        used: one of them was differentiated, or the user read its value.
        refusal: why its gradients may not be applied; empty if they may.
        hooks: on the unscaled losses.
        losses: unscaled ones whose ``backward`` refuses.
    """

    used: bool = False
    refusal: str = ""
    hooks: list[Any] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)

    def release(self) -> None:
        """Remove what was put on the losses."""
        for hook in self.hooks:
            hook.remove()
        for loss in self.losses:
            loss.__dict__.pop("backward", None)


class NativeCalls:
    """Detects native calls while a scaled loss is pending.

    Args:
        rescales: the session's gradients have another size than the unscaled loss's: a scale, or a window's mean.
        masters: the session's.

    Attributes:
        unprepared: optimizers beside the session.
        unscaled: returns whether an optimizer's gradients carry no loss scale now.
    """

    def __init__(self, rescales: bool, masters: MasterWeights) -> None:
        self.rescales = rescales
        self._masters = masters
        self._calls = "amp.scale_loss", "amp.step(optimizer)"
        self._pending: dict[int, Pending] = {}
        self._optimizers: list[Optimizer] = []
        self.unprepared = UnpreparedOptimizers()
        self.unscaled: Callable[[Optimizer], bool] = _always

    def name_calls(self, scale_loss: str, step: str) -> None:
        """Name the calls that scale a loss and that step, for messages."""
        self._calls = scale_loss, step

    # -- a scaled loss -------------------------------------------------------------------------------------------

    def begin(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> bool:
        """Note that a loss is scaled for ``optimizers``; return whether it is the first one since their last steps."""
        first = self.rescales and not self._pending
        for optimizer in optimizers:
            self._pending.setdefault(id(optimizer), Pending())
        if self.rescales and not first and optimizers:
            hook = loss.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
                functools.partial(self._on_unscaled, optimizers)
            )
            self._pending[id(optimizers[0])].hooks.append(hook)
        return first

    def differentiated(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> None:
        """Refuse ``loss.backward()`` of the first loss from here on: its scaled form was differentiated."""
        pending = self._pending.get(id(optimizers[0])) if optimizers else None
        if pending is not None:
            loss.backward = functools.partial(self._refuse, optimizers)  # type: ignore[method-assign]  # this loss alone
            pending.losses.append(loss)

    def check_first(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse to add the first scaled gradients to other gradients.

        Raises:
            StepOrderError: there are gradients already.
        """
        if self._has_values(optimizers):
            raise errors.StepOrderError(
                "amp.scale_loss: parameters have gradients that came from no scaled loss, and they would be divided by "
                "its scale: differentiate every loss by scaled_loss.backward() instead of loss.backward(), and call "
                "optimizer.zero_grad() where gradients are left from before"
            )

    def use(self, optimizers: Sequence[Optimizer]) -> None:
        """Note that the scaled loss is differentiated, or that the user read its value."""
        for optimizer in optimizers:
            if id(optimizer) in self._pending:
                self._pending[id(optimizer)].used = True

    def note_scaled(self, optimizers: Sequence[Optimizer]) -> None:
        """Note that optimizers have gradients of scaled losses, which were differentiated before they were known."""
        for optimizer in optimizers:
            self._pending.setdefault(id(optimizer), Pending(used=True))

    def check_unused(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse a first block that ends with gradients although its scaled loss was not used.

        Raises:
            StepOrderError: naming both calls.
        """
        if self._has_values(optimizers):
            raise self._refused(optimizers)

    def check(self, optimizer: Optimizer, call: str) -> None:
        """Refuse gradients that did not come from the scaled loss.

        Raises:
            StepOrderError: naming both calls.
        """
        pending = self._pending.get(id(optimizer))
        if pending is None:
            return
        if self.rescales and not pending.used and has_gradients(optimizer):
            raise self._refused([optimizer])
        if pending.refusal:
            raise errors.StepOrderError(f"amp.{call}({type(optimizer).__name__}): {pending.refusal}")

    def end(self, optimizer: Optimizer) -> None:
        """Note that the optimizer had its step, or that its gradients were dropped."""
        pending = self._pending.pop(id(optimizer), None)
        if pending is not None and (pending.hooks or pending.losses):
            pending.release()

    @staticmethod
    def rollback() -> None:
        """Forget the call that was interrupted."""
        passes.running.clear()
        _stepping.optimizer = None

    def with_open_window(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """Return those for which a loss was scaled since their last step."""
        return [optimizer for optimizer in optimizers if id(optimizer) in self._pending]

    def close(self) -> None:
        """Forget what is pending, and remove the hooks from its losses."""
        for pending in self._pending.values():
            pending.release()
        self._pending.clear()

    # -- captured steps ------------------------------------------------------------------------------------------

    def pending(self) -> Mapping[int, bool]:
        """Return what a replay of a captured step leaves pending."""
        return {key: pending.used for key, pending in self._pending.items()}

    def restore(self, pending: Mapping[int, bool]) -> None:
        """Restore what :meth:`pending` returned."""
        if pending or self._pending:
            self._pending = {key: Pending(used) for key, used in pending.items()}

    # -- native calls --------------------------------------------------------------------------------------------

    def watch(self, optimizers: Sequence[Optimizer]) -> list[Callable[[], None]]:
        """Detect native steps of ``optimizers``, and torch's scaling and clipping; return what ends that."""
        self._optimizers += optimizers
        steps = [optimizer.register_step_pre_hook(self._before_step).remove for optimizer in optimizers]
        return [*steps, watch_torch(self)] if steps else []

    def before_unscale(self, optimizer: Optimizer) -> None:
        """Refuse to unscale gradients that are this session's.

        Raises:
            StepOrderError: a loss was scaled for the optimizer.
        """
        if id(optimizer) in self._pending:
            name, (scale_loss, step) = type(optimizer).__name__, self._calls
            raise errors.StepOrderError(
                f"torch.amp.GradScaler.unscale_({name}): a loss was scaled for this optimizer by {scale_loss}, and the "
                f"session divides its gradients by the scale: leave the GradScaler out; amp.unscale(optimizer) and "
                f"amp.clip_grad_norm(optimizer, ...) unscale, and {step} skips and updates the scale"
            )

    def before_any_step(self, optimizer: Optimizer) -> None:
        """Refuse to step an optimizer that was not prepared, over scaled gradients.

        Raises:
            StepOrderError: naming it.
        """
        if self.rescales and _stepping.optimizer is not optimizer and optimizer not in self._optimizers:
            self.unprepared.check(optimizer)

    def before_clip(self, name: str, params: Sequence[torch.Tensor]) -> None:
        """Refuse to clip gradients that are scaled.

        Raises:
            StepOrderError: naming the session's call.
        """
        for optimizer in self.with_open_window(self._optimizers):
            if not self.unscaled(optimizer) and self._clips(optimizer, params):
                raise errors.StepOrderError(
                    f"torch.nn.utils.{name}: gradients of this {type(optimizer).__name__} are multiplied by the loss "
                    f"scale until {self._calls[1]}, and would be clipped so: call amp.{CLIPPING[name]}(optimizer, ...) "
                    "instead, or amp.unscale(optimizer) first"
                )

    def _clips(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> bool:
        held = {id(each) for param in parameters(optimizer) for each in (param, self._masters.model_param(param))}
        return any(id(param) in held and param.grad is not None for param in params)

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if _stepping.optimizer is not optimizer and id(optimizer) in self._pending:
            name, (scale_loss, step) = type(optimizer).__name__, self._calls
            raise errors.StepOrderError(
                f"{name}.step(): a loss was scaled for this optimizer by {scale_loss}, and its gradients are the "
                f"session's until {step}; call {step} instead of optimizer.step(), or amp.discard_step(optimizer) first"
            )

    def _on_unscaled(self, optimizers: Sequence[Optimizer], _: torch.Tensor) -> None:
        if passes.running or torch._C._current_graph_task_id() in passes.by_hand:
            return
        if any(accumulates(self._masters.model_param(param)) for each in optimizers for param in parameters(each)):
            raise self._refused(optimizers)

    def _refuse(self, optimizers: Sequence[Optimizer], *_: Any, **__: Any) -> NoReturn:
        raise self._refused(optimizers)

    def _refused(self, optimizers: Sequence[Optimizer]) -> errors.StepOrderError:
        refusal = (
            "loss.backward() ran on a loss that is not scaled, between amp.scale_loss and amp.step: its gradients "
            "would be divided by a scale that they do not have; call scaled_loss.backward() instead of "
            "loss.backward(), after amp.discard_step(optimizer) if this error was caught"
        )
        for optimizer in optimizers:
            self._pending.setdefault(id(optimizer), Pending()).refusal = refusal
        return errors.StepOrderError(f"amp.scale_loss: {refusal}")

    def _has_values(self, optimizers: Sequence[Optimizer]) -> bool:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    grad = param.grad
                    if grad is not None and _not_zero(grad):
                        return True
        if not self._masters.in_use:
            return False
        return any(_not_zero(grad) for each in optimizers for grad in self._masters.model_grads(each))


def _always(_optimizer: Optimizer) -> bool:
    return True


def _not_zero(grad: torch.Tensor) -> bool:
    """Return whether a gradient is more than what ``zero_grad(set_to_none=False)`` leaves; waits for the device."""
    if traits(grad.device).captures_graphs and torch.cuda.is_current_stream_capturing():
        return False  # the uncaptured steps before it were checked
    if grad.is_sparse:
        return grad._nnz() > 0
    local = grad.to_local() if hasattr(grad, "to_local") else grad
    return bool(local.any())
