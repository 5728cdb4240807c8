"""What TensorFlow can do on a device, with reasons."""

from __future__ import annotations

from collections.abc import Mapping

from unifiedamp.backend import PRESETS, Capabilities, SessionSpec, Support, errors

from .device.hardware import dtype_gain, recommended_policy
from .device.selection import DeviceInfo
from .training.checks import NO_FLOAT8

MASTERS = "float32 variables of the optimizer, which is built over them; on each replica"


def declare(device: DeviceInfo, op_overrides: Support, tuning: Mapping[str, Support], *, emulate: bool) -> Capabilities:
    """Return the answers for a device, without the features of optional roles.

    Args:
        device: the session's.
        op_overrides: the mode's answer for ``Policy.op_overrides``.
        tuning: item of ``Tuning`` → whether it has an effect.
        emulate: ``backend_options.tensorflow.emulate``.
    """
    features = {
        "context_form": Support(True),
        "loss_scaling": Support(True),
        "accumulation": Support(True),
        "several_optimizers": Support(True),
        "op_overrides": op_overrides,
        "layer_overrides": Support(True, "a dtype policy per layer"),
        "emulation": Support(True, "of products and convolutions in float16, bfloat16 and float8, on any device"),
        "float8": Support(True, f"emulated by backend_options.tensorflow.emulate; {NO_FLOAT8}"),
        "master_weights": Support(True, MASTERS),
        "reduce_dtype": Support(True, "a cast around the sum over a strategy's replicas; sparse gradients as they are"),
        "no_device_wait": Support(
            True, "steps compiled by XLA never wait; tf.function reads one flag for tf.cond, as an eager step does"
        ),
    }
    return Capabilities(device.name, _policies(device, emulate), features, tuning)


def _policies(device: DeviceInfo, emulate: bool) -> dict[str, Support]:
    """Return preset → whether it runs, and whether it is faster than float32."""
    answers = {"float32": Support(True)}
    for name, preset in PRESETS.items():
        if preset.compute_dtype == "float8":
            reason = dtype_gain("float8", device).reason
            answers[name] = Support(True, reason, False) if emulate else Support(False, NO_FLOAT8)
        elif preset.compute_dtype != "float32":
            gain = dtype_gain(preset.compute_dtype, device)
            answers[name] = Support(True, gain.reason, gain.ok)
    return answers


def warn_without_gain(spec: SessionSpec, device: DeviceInfo) -> None:
    """Warn of a policy that runs without being faster than float32."""
    dtype = spec.policy.compute_dtype
    emulated = spec.policy.emulate and dtype != "float8"
    gain = Support(True) if dtype == "float32" or emulated else dtype_gain(dtype, device)
    if not gain:
        spec.warn(
            f"policy {str(spec.policy)!r} runs on {device.name} without gain in speed: {gain.reason}; "
            f"recommended for this device: {recommended_policy(device)[0]!r}",
            errors.NoGainWarning,
        )
