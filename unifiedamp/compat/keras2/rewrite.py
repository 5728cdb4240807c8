"""``enable_mixed_precision_graph_rewrite`` of ``tf.train.experimental`` and ``tf.compat.v1.mixed_precision``."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, nullcontext
from typing import Any

import tensorflow as tf

import unifiedamp as ua

from .optimizer import dynamic_scale, session, wrapped

_open: list[ExitStack] = []
_v1: list[Any] = []


def enable_mixed_precision_graph_rewrite(opt: Any, loss_scale: Any = "dynamic") -> Any:
    """Convert graphs from here on, in the whole process, and return the optimizer under a loss scale.

    On a GPU graphs are converted to float16; on a CPU to bfloat16, by oneDNN, where the CPU has what that takes.

    Args:
        opt: a Keras optimizer, or a ``tf.compat.v1.train.Optimizer`` for session training.
        loss_scale: "dynamic", a number, or a loss scale.

    Raises:
        PrepareError: a mixed Keras policy is active, or the optimizer scales losses already.
        WrongObjectError: no optimizer.
    """
    settings = dynamic_scale() if loss_scale == "dynamic" else loss_scale
    in_session = isinstance(opt, tf.compat.v1.train.Optimizer)
    # What the session of ours makes for its own loops stays out of the user's graph.
    with tf.Graph().as_default() if in_session else nullcontext():
        amp = session(settings, _policy(), mode="graph_rewrite")
    with ExitStack() as entered:
        if in_session:
            prepared = _session_training(amp, opt, entered)
        else:
            entered.enter_context(amp.scope())
            prepared = wrapped(amp, opt)
        _open.append(entered.pop_all())
    return prepared


def disable_mixed_precision_graph_rewrite() -> None:
    """Leave graphs alone again; optimizers keep their loss scale."""
    _v1.clear()
    while _open:
        _open.pop().close()


def session_config() -> Any:
    """Return the ``ConfigProto`` for a ``tf.compat.v1.Session`` that is to convert its graph (needed on a CPU).

    Raises:
        StepOrderError: no v1 optimizer was given to ``enable_mixed_precision_graph_rewrite``.
    """
    if not _v1:
        raise ua.StepOrderError("session_config: call enable_mixed_precision_graph_rewrite(optimizer) first")
    return _v1[-1].session_config()


def _policy() -> str:
    return "mixed_float16" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


def _session_training(amp: ua.Amp, opt: Any, entered: ExitStack) -> Any:
    rewrite = entered.enter_context(amp.backend.interop.session_rewrite())
    prepared = rewrite.prepare(opt)
    _v1.append(rewrite)
    if _policy() == "mixed_bfloat16":
        warnings.warn(
            "enable_mixed_precision_graph_rewrite: on a CPU a session converts its graph only on request: "
            "tf.compat.v1.Session(config=unifiedamp.compat.keras2.session_config())",
            ua.PolicyWarning,
            stacklevel=3,
        )
    return prepared
