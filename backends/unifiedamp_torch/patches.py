"""Changes that the backend makes to torch's own objects, and how they are taken back."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.utils.checkpoint
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from unifiedamp.backend import errors

Attention = Callable[..., Any]
"""``torch.nn.functional.scaled_dot_product_attention``, or what stands for it."""


def replace_attention(count: Callable[..., Any]) -> Callable[[], None]:
    """Make calls of ``torch.nn.functional.scaled_dot_product_attention`` go through ``count``; return what ends that.

    Args:
        count: called with torch's own function and the arguments of each call.
    """
    before: Any = functional.scaled_dot_product_attention
    ended = False

    def attention(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs) if ended else count(before, *args, **kwargs)

    def end() -> None:
        nonlocal ended
        ended = True
        if functional.scaled_dot_product_attention is attention:
            functional.scaled_dot_product_attention = before

    functional.scaled_dot_product_attention = attention
    return end


Scaler = torch.amp.GradScaler
Reentrant = torch.utils.checkpoint.CheckpointFunction
CLIPPING = {
    "clip_grad_norm_": "clip_grad_norm",
    "clip_grads_with_norm_": "clip_grad_norm",
    "clip_grad_value_": "clip_grad_value",
}
"""Name in ``torch.nn.utils`` → the session's call that clips true gradients."""
_SCALED, _OF_SESSION = "unifiedamp: scaled by a GradScaler", "unifiedamp: scaled by a session"


class NativeCallObserver(Protocol):
    """What a session does about calls of torch's own beside it."""

    def before_unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse ``scaler.unscale_(optimizer)`` of a ``torch.amp.GradScaler``, or do nothing."""

    def before_any_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse ``optimizer.step()``, or do nothing."""

    def before_clip(self, name: str, params: Sequence[torch.Tensor]) -> None:
        """Refuse the function of this name, which would clip the gradients of parameters, or do nothing."""


class _Watched:
    """Functions and methods of torch that are watched while sessions are in use.

    Attributes:
        observers: of all sessions that are in use.
        scaled: some GradScaler has scaled a loss since, or a user has read one that a session scaled.
        recomputed: some reentrant checkpoint has run since.
    """

    def __init__(self) -> None:
        self.observers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.scaled = self.recomputed = False
        self._before: list[tuple[Any, str, Any]] = []
        self._hook: Any = None

    def replace(self) -> None:
        if not self._before:
            self._hook = register_optimizer_step_pre_hook(_before_step)
            self._put(Scaler, "scale", _marking(Scaler.scale))
            self._put(Scaler, "unscale_", _asking(Scaler.unscale_))
            self._put(Reentrant, "forward", staticmethod(_noting(Reentrant.forward)))
            for name in CLIPPING:
                for owner, attribute, before in _places_of(name):
                    self._before.append((owner, attribute, before))
                    setattr(owner, attribute, _clipping(name, before))

    def _put(self, owner: Any, name: str, method: Any) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, method)

    def restore(self) -> None:
        while self._before:
            setattr(*self._before.pop())
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _places_of(name: str) -> list[tuple[Any, str, Any]]:
    """Return where one of torch's functions that clip is kept, as (owner, attribute, function).

    Scripts import it by name, also before a session is made: what is replaced is the function that it calls under
    ``no_grad``; in a torch where it calls none, the names in torch's modules.
    """
    outer: Any = getattr(torch.nn.utils, name, None)
    if outer is None:
        return []  # older than torch 2.6
    cells = dict(zip(outer.__code__.co_freevars, outer.__closure__ or (), strict=True))
    if "func" in cells:
        return [(cells["func"], "cell_contents", cells["func"].cell_contents)]
    modules = (torch.nn.utils, torch.nn.utils.clip_grad)
    return [(module, name, outer) for module in modules if hasattr(module, name)]


_watched = _Watched()


def watch_torch(observer: NativeCallObserver) -> Callable[[], None]:
    """Let an observer refuse ``unscale_`` of GradScalers, steps of optimizers and torch's functions that clip, mark the
    losses that GradScalers scale, refuse those that are scaled already, and note reentrant checkpoints; return what
    ends that.

    Scalers whose class has ``of_session`` are left alone.
    """

    def end() -> None:
        _watched.observers.discard(observer)
        if not _watched.observers:
            _watched.restore()

    _watched.observers.add(observer)
    _watched.replace()
    return end


def is_scaled(loss: torch.Tensor) -> bool:
    """Return whether a GradScaler has scaled a loss, also where it was divided or averaged since."""
    return _is_marked(loss, _SCALED)


def mark_scaled(loss: torch.Tensor) -> None:
    """Let GradScalers refuse a loss that a session has scaled."""
    _mark(loss, _OF_SESSION)


def recomputes_reentrantly(loss: torch.Tensor) -> bool:
    """Return whether the backward pass of a loss runs another one, of ``checkpoint(..., use_reentrant=True)``."""
    waiting: list[Any] = [loss.grad_fn] if _watched.recomputed else []
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if node.name() == f"{Reentrant.__name__}Backward":
                return True
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
    return False


def _before_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for observer in list(_watched.observers):
            observer.before_any_step(optimizer)


def _marking(scale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scale)
    def marked(self: Any, outputs: Any) -> Any:
        if hasattr(self, "of_session") or not self.is_enabled():
            return scale(self, outputs)
        given = list(outputs) if isinstance(outputs, Iterator) else outputs
        for loss in tree_leaves(given):
            if _is_marked(loss, _OF_SESSION):
                raise errors.StepOrderError(
                    "torch.amp.GradScaler.scale: amp.scale_loss has scaled this loss already, and its gradients would "
                    "be applied times the GradScaler's scale: leave the GradScaler out, and call scaled_loss.backward()"
                )
        result = scale(self, given)
        for loss in tree_leaves(result):
            _mark(loss, _SCALED)
        return result

    return marked


def _mark(loss: object, mark: str) -> None:
    node = getattr(loss, "grad_fn", None)
    if node is not None:
        node.metadata[mark] = _watched.scaled = True


def _is_marked(loss: object, mark: str) -> bool:
    """Return whether a loss was marked, also where it was divided or averaged since."""
    node = getattr(loss, "grad_fn", None) if _watched.scaled else None
    while node is not None:
        marks: Any = node.metadata  # a dict, which torch declares as a method
        if mark in marks:
            return True
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return False


def _asking(unscale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(unscale)
    def asked(self: Any, optimizer: Any) -> Any:
        for observer in () if hasattr(self, "of_session") else list(_watched.observers):
            observer.before_unscale(optimizer)
        return unscale(self, optimizer)

    return asked


def _clipping(name: str, clip: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(clip)
    def asked(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            for observer in list(_watched.observers):
                observer.before_clip(name, parameters)
        return clip(parameters, *args, **kwargs)

    return asked


def _noting(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def noted(*args: Any) -> Any:
        _watched.recomputed = True
        return forward(*args)

    return noted
