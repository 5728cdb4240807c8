"""``loss.backward()`` and ``optimizer.step()`` beside the session's calls, refused while a scaled loss is pending.

Either would train on gradients of the wrong size. The first is seen by the gradients that are there before the first
scaled loss is differentiated; then that loss's ``backward`` refuses, and further losses have a hook that fires when a
backward pass comes to them by another way than the scaled one. (A hook on each first loss would cost a small model's
step two percent.) The second is seen by a hook before the optimizer's step.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.autograd.graph import get_gradient_edge

from unifiedamp.backend import errors

from .gradients import any_there, parameters
from .master_weights import Masters

Optimizer = torch.optim.Optimizer


class _Stepping(threading.local):
    """The optimizer whose ``step`` a session runs in this thread."""

    optimizer: Any = None


class _Passes:
    """The backward passes of scaled losses, of all sessions: threads of the autograd engine ask for them.

    Attributes:
        running: who runs one by ``scaled_loss.backward()``.
        by_hand: the engine's numbers of the last ones that began at a ``scaled_loss.value``.
    """

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.by_hand: deque[int] = deque(maxlen=16)


_stepping = _Stepping()
passes = _Passes()


def run_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
    """Return ``optimizer.step(...)``, run for a session."""
    before = _stepping.optimizer
    try:
        _stepping.optimizer = optimizer
        return optimizer.step(*args, **kwargs)
    finally:
        _stepping.optimizer = before


def note_pass(_: torch.Tensor) -> None:
    """Hook of a scaled loss that was handed out: the backward pass that is running began there."""
    passes.by_hand.append(torch._C._current_graph_task_id())


@dataclass
class Pending:
    """One optimizer's scaled losses since its last step.

    Attributes:
        used: one of them was differentiated, or handed out.
        refusal: why its gradients may not be applied; empty when all is well.
        hooks: on the unscaled losses.
        losses: unscaled ones whose ``backward`` refuses.
    """

    used: bool = False
    refusal: str = ""
    hooks: list[Any] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)

    def release(self) -> None:
        """Take back what was put on the losses."""
        for hook in self.hooks:
            hook.remove()
        for loss in self.losses:
            vars(loss).pop("backward", None)


class NativeCalls:
    """Sees native calls while a scaled loss is pending.

    Args:
        rescales: the session's gradients have another size than the unscaled loss's, by a scale or a window's mean.
        masters: the session's.
    """

    def __init__(self, rescales: bool, masters: Masters) -> None:
        self.rescales = rescales
        self._masters = masters
        self._pending: dict[int, Pending] = {}

    # -- a scaled loss -------------------------------------------------------------------------------------------

    def begin(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> bool:
        """Note that a loss is scaled for ``optimizers``; return whether it is the first one since their last steps."""
        first = self.rescales and not self._pending
        for optimizer in optimizers:
            self._pending.setdefault(id(optimizer), Pending())
        if self.rescales and not first:
            hook = loss.register_hook(functools.partial(self._on_unscaled, optimizers))
            self._pending[id(optimizers[0])].hooks.append(hook)
        return first

    def differentiated(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> None:
        """Refuse ``loss.backward()`` of the first loss from here on: its scaled form was differentiated."""
        pending = self._pending.get(id(optimizers[0]))
        if pending is not None:
            loss.backward = functools.partial(self._refuse, optimizers)  # type: ignore[method-assign]
            pending.losses.append(loss)

    def check_first(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse to add the first scaled gradients to others.

        Raises:
            StepOrderError: there are gradients already.
        """
        if self._stale(optimizers):
            raise errors.StepOrderError(
                "amp.scale_loss: parameters have gradients that came from no scaled loss, and they would be divided by "
                "its scale: differentiate every loss by scaled_loss.backward() instead of loss.backward(), and call "
                "optimizer.zero_grad() where gradients are left from before"
            )

    def use(self, optimizers: Sequence[Optimizer]) -> None:
        """Note that the scaled loss is differentiated, or handed out."""
        for optimizer in optimizers:
            if id(optimizer) in self._pending:
                self._pending[id(optimizer)].used = True

    def check_unused(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse a first block that ends with gradients although its scaled loss was not used.

        Raises:
            StepOrderError: naming both calls.
        """
        if self._stale(optimizers):
            raise self._refused(optimizers)

    def check(self, optimizer: Optimizer, call: str) -> None:
        """Refuse gradients that did not come from the scaled loss.

        Raises:
            StepOrderError: naming both calls.
        """
        pending = self._pending.get(id(optimizer))
        if pending is None:
            return
        if self.rescales and not pending.used and any_there(optimizer):
            raise self._refused([optimizer])
        if pending.refusal:
            raise errors.StepOrderError(f"amp.{call}({type(optimizer).__name__}): {pending.refusal}")

    def end(self, optimizer: Optimizer) -> None:
        """Note that the optimizer had its step, or that its gradients were dropped."""
        pending = self._pending.pop(id(optimizer), None)
        if pending is not None:
            pending.release()

    @staticmethod
    def rollback() -> None:
        """Forget the call that was interrupted: it runs no more."""
        passes.running.clear()
        _stepping.optimizer = None

    def close(self) -> None:
        """Forget what is pending, and take the hooks off its losses."""
        for pending in self._pending.values():
            pending.release()
        self._pending.clear()

    # -- captured steps ------------------------------------------------------------------------------------------

    def pending(self) -> Mapping[int, bool]:
        """Return what a replay of a captured step leaves pending."""
        return {key: pending.used for key, pending in self._pending.items()}

    def restore(self, pending: Mapping[int, bool]) -> None:
        """Take over what :meth:`pending` returned."""
        if pending or self._pending:
            self._pending = {key: Pending(used) for key, used in pending.items()}

    # -- native calls --------------------------------------------------------------------------------------------

    def watch(self, optimizers: Sequence[Optimizer]) -> list[Callable[[], None]]:
        """See native steps of ``optimizers``; return what ends that."""
        return [optimizer.register_step_pre_hook(self._before_step).remove for optimizer in optimizers]

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) in self._pending and _stepping.optimizer is not optimizer:
            name = type(optimizer).__name__
            raise errors.StepOrderError(
                f"{name}.step(): a loss was scaled for this optimizer by amp.scale_loss, and its gradients are the "
                f"session's until amp.step(optimizer); call amp.step(optimizer) instead of optimizer.step(), or "
                "amp.discard_step(optimizer) first"
            )

    def _on_unscaled(self, optimizers: Sequence[Optimizer], _: torch.Tensor) -> None:
        if passes.running or torch._C._current_graph_task_id() in passes.by_hand:
            return
        if any(_accumulates(self._masters.low(param)) for each in optimizers for param in parameters(each)):
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

    def _stale(self, optimizers: Sequence[Optimizer]) -> bool:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    grad = param.grad
                    if grad is not None and _not_zero(grad):
                        return True
        return any(_not_zero(grad) for each in optimizers for grad in self._masters.low_gradients(each))


def _not_zero(grad: torch.Tensor) -> bool:
    """Tell whether a gradient is more than what ``zero_grad(set_to_none=False)`` leaves; waits for the device."""
    if grad.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # the steps before it were looked at
    if grad.is_sparse:
        return grad._nnz() > 0
    local = grad.to_local() if hasattr(grad, "to_local") else grad
    return bool(local.any())


def _accumulates(param: torch.Tensor) -> bool:
    """Tell whether the running backward pass adds to ``param.grad``; ``torch.autograd.grad`` does not."""
    if not param.requires_grad:
        return False
    if hasattr(param, "to_local"):
        return True  # FSDP differentiates others in its place
    try:
        return torch._C._will_engine_execute_node(get_gradient_edge(param).node)
    except RuntimeError:
        return False
