"""Changes that the backend makes to torch's own objects, and how they are taken back."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

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
_SCALED = "unifiedamp: scaled by a GradScaler"


class ScalerObserver(Protocol):
    """What a session does about ``torch.amp.GradScaler`` objects beside it."""

    def before_unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse ``scaler.unscale_(optimizer)``, or do nothing."""


class _Scalers:
    """What the methods of ``torch.amp.GradScaler`` were, and who observes them.

    Attributes:
        observers: of all sessions that are in use.
        methods: name → torch's own; empty while they are in place.
        scaled: some scaler has scaled a loss since.
    """

    def __init__(self) -> None:
        self.observers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.methods: dict[str, Callable[..., Any]] = {}
        self.scaled = False

    def replace(self) -> None:
        if not self.methods:
            self.methods = {"scale": Scaler.scale, "unscale_": Scaler.unscale_}
            Scaler.scale = _marking(Scaler.scale)  # type: ignore[method-assign]  # put back by `restore`
            Scaler.unscale_ = _asking(Scaler.unscale_)  # type: ignore[method-assign]  # likewise

    def restore(self) -> None:
        for name, method in self.methods.items():
            setattr(Scaler, name, method)
        self.methods = {}


_scalers = _Scalers()


def observe_scalers(observer: ScalerObserver) -> Callable[[], None]:
    """Let an observer refuse ``unscale_`` of GradScalers, and mark what they scale; return what ends that.

    Scalers whose class has ``of_session`` are left alone.
    """

    def end() -> None:
        _scalers.observers.discard(observer)
        if not _scalers.observers:
            _scalers.restore()

    _scalers.observers.add(observer)
    _scalers.replace()
    return end


def is_scaled(loss: torch.Tensor) -> bool:
    """Return whether a GradScaler has scaled a loss, also where it was divided or averaged since."""
    node = loss.grad_fn if _scalers.scaled else None
    while node is not None:
        if _SCALED in node.metadata:
            return True
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return False


def _marking(scale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scale)
    def marked(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        node = getattr(result, "grad_fn", None)
        if node is not None and result is not outputs and not hasattr(self, "of_session"):
            node.metadata[_SCALED] = _scalers.scaled = True
        return result

    return marked


def _asking(unscale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(unscale)
    def asked(self: Any, optimizer: Any) -> Any:
        for observer in () if hasattr(self, "of_session") else list(_scalers.observers):
            observer.before_unscale(optimizer)
        return unscale(self, optimizer)

    return asked
