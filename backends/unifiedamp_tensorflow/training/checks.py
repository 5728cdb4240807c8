"""Checks of options and losses, and the result of a traced step."""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import SessionSpec, StepResult, StepValues, errors

from .._types import Tensor
from ..precision import emulation

OPTIONS = ("mode", "xla", "emulate")

NO_FLOAT8 = "TensorFlow has no operation that multiplies float8 matrices"


def check_spec(spec: SessionSpec) -> None:
    """Check ``backend_options.tensorflow``, and that float8 can run.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type.
        PolicyNotSupportedError: float8 without ``emulate``, or by the graph rewrite.
    """
    spec.check_options(OPTIONS, "tensorflow")
    for name in ("xla", "emulate"):
        if not isinstance(value := spec.options.get(name, False), bool):
            raise errors.ConfigError(f"backend_options.tensorflow.{name} must be true or false, got {value!r}")
    asked, float8 = spec.options.get("emulate", False), spec.policy.compute_dtype == "float8"
    emulate = asked or spec.policy.emulate
    emulation.check_policy(spec.policy, spec.options.get("mode", "keras"))
    if asked and all(policy.compute_dtype != "float8" for policy in (spec.policy, *spec.policies)):
        spec.warn(
            f"backend_options.tensorflow.emulate has no effect under policy '{spec.policy}': it is for mixed_float8",
            errors.PolicyWarning,
        )
    if float8 and spec.options.get("mode", "keras") != "keras":
        raise errors.PolicyNotSupportedError(
            f"policy {str(spec.policy)!r}: TensorFlow's graph rewrite has no float8; nearest: 'mixed_bfloat16', or "
            "mode='keras' with emulate=True"
        )
    if float8 and not emulate:
        raise errors.PolicyNotSupportedError(
            f"policy {str(spec.policy)!r} cannot run: {NO_FLOAT8}; nearest that does: 'mixed_bfloat16'; "
            f"{str(spec.policy.replace(emulate=True))!r} runs its numerics anywhere"
        )


def scalar_loss(loss: object) -> Tensor:
    """Return ``loss`` as a tensor.

    Raises:
        LossError: it is not a floating-point tensor, or not a scalar.
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


def scalar_condition(condition: object) -> Tensor:
    """Return whether a condition of ``amp.skip_if`` holds, a bool scalar.

    Raises:
        WrongObjectError: it is no TensorFlow tensor or variable of bools or real numbers, or not a scalar.
    """
    tensor = tf.convert_to_tensor(condition) if isinstance(condition, tf.Variable) else condition
    if not isinstance(tensor, tf.Tensor) or not _has_truth(tensor):
        raise errors.WrongObjectError(
            "amp.skip_if: the condition must be a bool, or a scalar TensorFlow tensor of bools or numbers; got "
            f"{_kind(tensor)}"
        )
    if tensor.shape.rank not in (0, None):
        raise errors.WrongObjectError(
            f"amp.skip_if: the condition must be a scalar; got shape {tuple(tensor.shape)}; reduce it first, for "
            "example by tf.reduce_any"
        )
    return tensor if tensor.dtype == tf.bool else tf.not_equal(tensor, tf.zeros([], tensor.dtype))


def _has_truth(tensor: Tensor) -> bool:
    return bool(tensor.dtype == tf.bool or tensor.dtype.is_floating or tensor.dtype.is_integer)


def _kind(loss: object) -> str:
    return f"a {loss.dtype.name} tensor" if isinstance(loss, tf.Tensor) else type(loss).__name__


def not_in_trace() -> StepResult:
    """Return the result of a traced step, whose fields cannot be read yet."""

    def read() -> StepValues:
        raise errors.StepOrderError(
            "StepResult: inside a compiled step nothing has run yet, so its fields cannot be read; look at "
            "amp.loss_scale, amp.applied_steps and amp.skipped_steps after the call"
        )

    return StepResult(read)
