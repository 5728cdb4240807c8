"""Checks that several rooms share."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unifiedamp.backend import SessionSpec, StepResult, StepValues, errors

OPTIONS = ("mode", "xla")


def check_spec(spec: SessionSpec) -> None:
    """Check ``backend_options.tensorflow``.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type.
    """
    spec.check_options(OPTIONS, "tensorflow")
    xla = spec.options.get("xla", False)
    if not isinstance(xla, bool):
        raise errors.ConfigError(f"backend_options.tensorflow.xla must be true or false, got {xla!r}")


def scalar_loss(loss: Any) -> Any:
    """Return ``loss`` as a tensor.

    Raises:
        LossError: it is no floating tensor, or not a scalar.
    """
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating:
        raise errors.LossError(
            f"amp.scale_loss: the loss must be a floating-point TensorFlow tensor, got {_kind(loss)}"
        )
    if loss.shape.rank not in (0, None):
        raise errors.LossError(
            f"amp.scale_loss: the loss must be a scalar, got shape {tuple(loss.shape)}; reduce it first, "
            "for example by tf.reduce_mean"
        )
    return loss


def _kind(loss: Any) -> str:
    return f"a {loss.dtype.name} tensor" if isinstance(loss, tf.Tensor) else type(loss).__name__


def not_in_trace() -> StepResult:
    """Return the result of a traced step, whose fields cannot be read."""

    def read() -> StepValues:
        raise errors.StepOrderError(
            "StepResult: inside a compiled step nothing has run yet, so its fields cannot be read; look at "
            "amp.loss_scale, amp.applied_steps and amp.skipped_steps after the call"
        )

    return StepResult(read)
