"""MXNet: ``amp.init`` before the model is made, ``amp.init_trainer`` and ``amp.scale_loss`` for the scale.

``amp.init`` patches MXNet's modules for the whole process and knows no way back. So that it can take turns with another
loop, what it changed is put in before each turn and taken out after it, off the clock.
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
    """Every attribute of every MXNet module, and of the classes that hold operators."""
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
    """Have the process as ``amp.init`` left it."""
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
    """The published wheels' GPU code ends at compute capability 8.6: what runs here is the CPU's."""


def low() -> str:
    return "mixed_bfloat16"


def scope(policy: str = "") -> AbstractContextManager[None]:
    """float32 needs nothing; ``amp.init`` has to come before the model."""
    return nullcontext() if policy == "float32" else around()


def begin() -> None:
    """Nothing is kept between rows."""


def clear() -> None:
    gc.collect()


def number(loss: Any) -> float:
    return float(loss.asnumpy().ravel()[0])


def memory(run: Callable[[], Any]) -> dict[str, int]:
    return {}


def train_step(
    model: Any, trainer: Any, loss_fn: Any, scale: float | None, compiled: bool | str, policy: str = ""
) -> Callable[..., Any]:
    """``compiled=True`` is ``hybridize``; MXNet's first scale is 65536, whatever ``scale`` is."""
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
