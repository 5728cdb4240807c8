"""``tf.keras.mixed_precision.experimental`` of TensorFlow 2.0 to 2.3: policies that carry a loss scale."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

import unifiedamp as ua

from .optimizer import dynamic_scale, keras_policy, session, wrapped

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScaleOptimizer",
    "Policy",
    "global_policy",
    "set_policy",
]

_native: Any = tf.keras.mixed_precision
_NAMES = {"default_mixed": "mixed_float16"}
_given = "unifiedamp: the policy's own loss scale"


def DynamicLossScale(
    initial_loss_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
) -> ua.DynamicLossScale:
    """Return ``unifiedamp.DynamicLossScale`` in TensorFlow's terms."""
    return dynamic_scale(float(initial_loss_scale), increment_period, float(multiplier))


def FixedLossScale(loss_scale_value: float) -> ua.StaticLossScale:
    """Return ``unifiedamp.StaticLossScale``."""
    return ua.StaticLossScale(float(loss_scale_value))


def LossScaleOptimizer(optimizer: Any, loss_scale: Any = "dynamic") -> Any:
    """Return a Keras optimizer under a loss scale; see ``keras2.LossScaleOptimizer``.

    Args:
        optimizer: of ``tf.keras.optimizers``.
        loss_scale: "dynamic", a number, or a loss scale; None leaves the optimizer as it is.
    """
    return wrapped(session(_scale(loss_scale)), optimizer)


def _scale(loss_scale: Any) -> Any:
    if loss_scale is None:
        return "none"
    return dynamic_scale() if loss_scale == "dynamic" else loss_scale


class Policy(_native.Policy):
    """A Keras dtype policy with a loss scale, which ``model.compile`` uses while the policy is set.

    Args:
        name: "mixed_float16", "mixed_bfloat16", "float32", ..., or "default_mixed", as early releases had it.
        loss_scale: "dynamic", a number, a loss scale or None; left out, "dynamic" for "mixed_float16" alone.
    """

    def __init__(self, name: str, loss_scale: Any = _given) -> None:
        name = _NAMES.get(name, name)
        super().__init__(name)
        chosen = ("dynamic" if name == "mixed_float16" else None) if loss_scale == _given else loss_scale
        self._amp_loss_scale = chosen

    @property
    def loss_scale(self) -> Any:
        """The policy's loss scale, as given."""
        return self._amp_loss_scale


_set: list[Policy] = []


def set_policy(policy: Any) -> None:
    """Set Keras's global policy, and the loss scale that ``model.compile`` gives to optimizers that have none.

    Args:
        policy: a :class:`Policy`, or a name. "float32" takes everything back.
    """
    chosen = policy if isinstance(policy, Policy) else Policy(getattr(policy, "name", policy))
    # Not the policy itself: Keras writes what is set into the configurations of layers, and should find its own class.
    _native.set_global_policy(keras_policy(chosen.name))
    _set[:] = [chosen]
    if chosen.loss_scale is None:
        _compile_natively()
    else:
        _compile_with_loss_scale()


def global_policy() -> Policy:
    """Return the policy that is set, with its loss scale."""
    name = _native.global_policy().name
    return _set[0] if _set and _set[0].name == name else Policy(name)


_own_compile = vars(tf.keras.Model).get("compile")


def _compile_natively() -> None:
    if _own_compile is not None:
        tf.keras.Model.compile = _own_compile
    elif "compile" in vars(tf.keras.Model):
        del tf.keras.Model.compile


def _compile_with_loss_scale() -> None:
    _compile_natively()
    native = tf.keras.Model.compile

    @functools.wraps(native)
    def compile(model: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> Any:
        inner = tf.keras.optimizers.get(optimizer)
        if not isinstance(inner, _native.LossScaleOptimizer):
            inner = LossScaleOptimizer(inner, global_policy().loss_scale)
        return native(model, inner, *args, **kwargs)

    tf.keras.Model.compile = compile
