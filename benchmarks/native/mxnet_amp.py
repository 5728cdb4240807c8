"""MXNet: ``amp.init`` before the model is created, ``amp.init_trainer`` and ``amp.scale_loss`` for loss scaling.

``amp.init`` patches MXNet's modules for the whole process and cannot be undone. To alternate with another loop, its
patches are applied before each turn and removed after it, outside the timing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import mxnet as mx
from mxnet import autograd

try:
    from mxnet import amp
except ImportError:
    from mxnet.contrib import amp

_changed: list[tuple[Any, str, Any]] = []


def _attributes() -> dict[tuple[str, str], Any]:
    """Return every attribute of every MXNet module."""
    modules = [(name, module) for name, module in sys.modules.items() if name.split(".")[0] == "mxnet"]
    return {(name, key): value for name, module in modules for key, value in vars(module).items()}


def _init() -> None:
    before = _attributes()
    amp.init(target_dtype="bfloat16")
    for (name, key), value in _attributes().items():
        if before.get((name, key), value) is not value:
            _changed.append((sys.modules[name], key, value))
            setattr(sys.modules[name], key, before[name, key])


@contextmanager
def around() -> Iterator[None]:
    """Apply the patches of ``amp.init``."""
    if not _changed:
        _init()
    before = [(module, key, vars(module)[key]) for module, key, _ in _changed]
    try:
        for module, key, value in _changed:
            setattr(module, key, value)
        yield
    finally:
        for module, key, value in before:
            setattr(module, key, value)


tensor = mx.nd.array
finish = mx.nd.waitall


def gpu() -> None:
    """Return None: the published wheels support GPUs up to compute capability 8.6, so the CPU is measured."""


def low() -> str:
    return "mixed_bfloat16"


def scope(policy: str = "") -> AbstractContextManager[None]:
    """Return a context with the patches, which must precede the model; none for float32."""
    return nullcontext() if policy == "float32" else around()


def begin() -> None:
    """Do nothing: there are no caches between rows."""


def clear() -> None:
    gc.collect()


def number(loss: Any) -> float:
    return float(loss.asnumpy().ravel()[0])


def memory(run: Callable[[], Any]) -> dict[str, int]:
    return {}


def train_step(
    model: Any, trainer: Any, loss_fn: Any, scale: float | None, compiled: bool | str, policy: str = ""
) -> Callable[..., Any]:
    """``compiled=True`` uses ``hybridize``; MXNet's initial scale is always 65536."""
    if compiled:
        model.hybridize(static_alloc=True, static_shape=True)
    if scale:
        amp.init_trainer(trainer)

    def plain(x: Any, y: Any) -> Any:
        with autograd.record():
            loss = loss_fn(model(x), y)
        loss.backward()
        trainer.step(1)
        return loss

    def with_scale(x: Any, y: Any) -> Any:
        with autograd.record():
            loss = loss_fn(model(x), y)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        trainer.step(1)
        return loss

    return with_scale if scale else plain
