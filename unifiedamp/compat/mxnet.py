"""The spellings of ``mxnet.contrib.amp`` (MXNet 1) and ``mxnet.amp`` (MXNet 2).

    from unifiedamp.compat import mxnet as amp

Casts and scale are those of sessions of ours: nothing is patched permanently, each Trainer has its own session, and
``trainer.step(batch_size)`` skips on overflow, on every context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import unifiedamp as ua
from unifiedamp.measured import making

from . import after_step, note_loss

__all__ = ["close", "convert_hybrid_block", "convert_model", "init", "init_trainer", "scale_loss", "unscale"]

Conditional = Iterable[tuple[str, str, Iterable[str]]]
_POLICIES = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16", "float32": "float32"}
_begun: list[tuple[str, Any]] = []  # the policy and the casts of init()


def init(
    target_dtype: Any = "float16",
    target_precision_ops: Iterable[str] | None = None,
    conditional_fp32_ops: Conditional | None = None,
    fp32_ops: Iterable[str] | None = None,
    layout_optimization: bool = False,
) -> None:
    """Cast operators from here on, in the whole process; called again, with the new settings.

    Args:
        target_dtype: "float16" (GPU), "bfloat16" (CPU), or "float32" to scale losses and cast nothing.
        target_precision_ops, fp32_ops: MXNet's names of the operators to run in ``target_dtype`` and in float32, in
            place of MXNet's lists.
        conditional_fp32_ops: (operator, parameter, values that make it run in float32), in place of MXNet's list.
        layout_optimization: MXNet 2's layout pass, for graphs built in regions of a session.

    Raises:
        PolicyNotSupportedError: the dtype cannot run here, with the nearest that does.
        ConfigError: another dtype, or an operator that MXNet does not have.
    """
    policy = _policy(target_dtype)
    options = {"mxnet": {"layout_optimization": True}} if layout_optimization else None
    with making("casts"):
        amp = ua.Amp("mxnet", policy, loss_scale="none", backend_options=options)
    close()
    _begun.append((policy, amp.backend.interop.cast_everywhere(target_precision_ops, fp32_ops, conditional_fp32_ops)))


def close() -> None:
    """Take back what :func:`init` did; MXNet's own cannot."""
    while _begun:
        _begun.pop()[1].end()


def init_trainer(optimizer_or_trainer: Any, loss_scale: Any = "dynamic") -> None:
    """Give a ``gluon.Trainer`` a loss scale; its ``step`` then skips on overflow.

    Args:
        optimizer_or_trainer: the Trainer.
        loss_scale: as for ``Amp``; MXNet's own is dynamic always.

    Raises:
        StepOrderError: ``init`` was not called.
        WrongObjectError: no Trainer.
        PrepareError: the Trainer updates its weights on a kvstore, where nothing can be skipped.
    """
    if not _begun:
        raise ua.StepOrderError("amp.init_trainer: AMP is not initialized; call amp.init() before models are made")
    with making("scaler"):
        amp = ua.Amp("mxnet", _begun[0][0], loss_scale=loss_scale)
    amp.backend.interop.adopt(optimizer_or_trainer, lambda: after_step(amp))


def scale_loss(loss: Any, optimizer_or_trainer: Any) -> AbstractContextManager[Any]:
    """Return a context that yields the loss (or the list of losses) times the scale, to call ``backward`` on.

    Args:
        loss: of any shape; multiplied in float32.
        optimizer_or_trainer: the Trainer that it trains.

    Raises:
        WrongObjectError: ``init_trainer`` was not called for it.
    """
    note_loss(loss)
    return _scaler(optimizer_or_trainer, "scale_loss").scaled(loss)  # type: ignore[no-any-return]  # MXNet is untyped


def unscale(optimizer_or_trainer: Any) -> None:
    """Divide the Trainer's gradients by the scale, to clip or look at them before ``trainer.step``.

    Raises:
        WrongObjectError: ``init_trainer`` was not called for it.
    """
    _scaler(optimizer_or_trainer, "unscale").unscale()


def convert_hybrid_block(block: Any, target_dtype: Any = "float16", *, data: Any = None, **unsupported: Any) -> Any:
    """Return a copy of a model for inference in ``target_dtype``; see ``unifiedamp_mxnet.convert_model``.

    Args:
        block: a ``gluon.HybridBlock``.
        target_dtype: see :func:`init`.
        data: an array, or a list of them, like those it will be called with (MXNet's own needs an earlier call).
        **unsupported: operator lists and exclusions of MXNet's own; refused unless they are left at their defaults.

    Raises:
        ConfigError: ``data`` is missing.
        UnsupportedError: an argument of MXNet's that has no counterpart.
    """
    given = [name for name, value in unsupported.items() if value]
    if given:
        raise ua.UnsupportedError(
            f"amp.convert_hybrid_block: {', '.join(given)}: no counterpart; name operations in the op_overrides of a "
            "policy and call unifiedamp_mxnet.convert_model(block, *inputs, policy=...)"
        )
    if data is None:
        raise ua.ConfigError("amp.convert_hybrid_block: give data=, an array like those the model will be called with")
    amp = ua.Amp("mxnet", _policy(target_dtype), loss_scale="none")
    inputs = data if isinstance(data, (list, tuple)) else [data]
    return amp.backend.converter.convert(block, inputs, amp.policy)


def convert_model(*_args: Any, **_kwargs: Any) -> Any:
    """Refuse to convert a bare symbol.

    Raises:
        UnsupportedError: always; what it holds goes into a block first.
    """
    raise ua.UnsupportedError(
        "amp.convert_model takes a symbol and its parameters, which no session of ours knows; give the HybridBlock "
        "that they come from to amp.convert_hybrid_block(block, target_dtype, data=...)"
    )


def _policy(target_dtype: Any) -> str:
    name = target_dtype if isinstance(target_dtype, str) else getattr(target_dtype, "__name__", str(target_dtype))
    if name not in _POLICIES:
        raise ua.ConfigError(f"amp.init: target_dtype must be one of {', '.join(_POLICIES)}, got {target_dtype!r}")
    return _POLICIES[name]


def _scaler(trainer: Any, call: str) -> Any:
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if not hasattr(scaler, "scaled"):
        raise ua.WrongObjectError(
            f"amp.{call}: this {type(trainer).__name__} has no loss scale; call amp.init_trainer(trainer) first"
        )
    return scaler
