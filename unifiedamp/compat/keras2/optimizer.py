"""``tf.keras.mixed_precision.LossScaleOptimizer`` with the calls it had in Keras 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import unifiedamp as ua
from unifiedamp.measured import making, policy_in_force

from .. import after_step

INITIAL, PERIOD = 2.0**15, 2000
"""What Keras starts a dynamic scale from, and the finite steps after which it doubles."""


def LossScaleOptimizer(
    inner_optimizer: Any,
    dynamic: Any = True,
    initial_scale: float | None = None,
    dynamic_growth_steps: int | None = None,
) -> Any:
    """Return a Keras optimizer with ``get_scaled_loss``, ``get_unscaled_gradients`` and ``loss_scale``.

    ``apply_gradients`` skips where a gradient is inf or nan, as found before clipping, and updates the scale; so does
    ``model.fit``. It is an instance of Keras's own class, so ``model.compile`` does not wrap it again.

    Args:
        inner_optimizer: the optimizer that is applied, of ``tf.keras.optimizers``.
        dynamic: True for a scale that moves, False for ``initial_scale`` throughout; or a loss scale, as ``Amp`` takes.
        initial_scale: the first scale, 2**15 when left out.
        dynamic_growth_steps: finite steps after which the scale doubles, 2000 when left out.

    Raises:
        WrongObjectError, PrepareError: it is no Keras optimizer, or scales losses already.
        ConfigError: a number is out of range, or a fixed scale has none.
    """
    return wrapped(session(_settings(dynamic, initial_scale, dynamic_growth_steps)), inner_optimizer)


def _settings(dynamic: Any, initial_scale: float | None, steps: int | None) -> Any:
    if not isinstance(dynamic, bool):
        return dynamic_scale() if dynamic == "dynamic" else dynamic
    if dynamic:
        return dynamic_scale(INITIAL if initial_scale is None else initial_scale, PERIOD if steps is None else steps)
    if initial_scale is None:
        raise ua.ConfigError("LossScaleOptimizer: dynamic=False needs initial_scale, the scale to keep")
    return ua.StaticLossScale(float(initial_scale))


def dynamic_scale(initial: float = INITIAL, period: int = PERIOD, multiplier: float = 2.0) -> ua.DynamicLossScale:
    """Return a dynamic scale in Keras's terms: it is multiplied and divided by one factor."""
    low, high = min(initial, 2.0**-14), max(initial, 2.0**24)
    return ua.DynamicLossScale(initial, multiplier, 1.0 / multiplier, period, low, high)


def session(loss_scale: Any, policy: str | None = None, **options: Any) -> ua.Amp:
    """Return a session under ``policy``, or what Keras's global policy computes in."""
    name = policy or f"mixed_{tf.keras.mixed_precision.global_policy().compute_dtype}"
    name = "float32" if name not in ("mixed_float16", "mixed_bfloat16") else name
    _check_in_force(name)
    with making("scaler"):
        return ua.Amp("tensorflow", name, loss_scale=loss_scale, backend_options={"tensorflow": options})


def keras_policy(name: str) -> str:
    """Return the Keras policy in force for one that a script names: another one in a measured run."""
    wanted = policy_in_force(name)
    if wanted == name:
        return name
    dtype = ua.Policy.parse(wanted).compute_dtype
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def _check_in_force(name: str) -> None:
    """Refuse to measure a policy that is not in force: the script sets Keras's own, past this module."""
    wanted = policy_in_force("") or name
    if ua.Policy.parse(wanted).compute_dtype != ua.Policy.parse(name).compute_dtype:
        raise ua.ConfigError(
            f"this run is to measure {wanted!r}, and Keras's global policy computes in {name!r}: set it by "
            "unifiedamp.compat.keras2.set_global_policy, not by tf.keras.mixed_precision"
        )


def wrapped(amp: ua.Amp, optimizer: Any) -> Any:
    """Return the optimizer under the session's scale; as it is where the session has none."""
    if not amp.loss_scale_settings.enabled:
        return optimizer
    return amp.backend.interop.wrap_optimizer(optimizer, lambda: after_step(amp))
