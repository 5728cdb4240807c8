"""What JAX can do on a device, each answer with a reason."""

from __future__ import annotations

import jax

from unifiedamp.backend import PRESETS, Capabilities, SessionSpec, Support, errors, this_processor

from . import layers

NO_CONTEXT_FORM = "JAX differentiates functions, not values"


def find_device(name: str | None) -> jax.Device:
    """Return the device that a session asks for: "cpu", "gpu:1", "tpu"; None is JAX's default.

    Raises:
        ConfigError: there is none such.
    """
    if name is None:
        return jax.devices()[0]
    platform, _, index = name.partition(":")
    try:
        if not platform or int(index or 0) < 0:
            raise ValueError("write it as 'cpu' or 'gpu:1'")
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        known = ", ".join(f"{one.platform}:{one.id}" for one in jax.devices())
        raise errors.ConfigError(f"JAX has no device {name!r} (it has {known}): {error}") from error


def default_policy(name: str | None) -> tuple[str, str]:
    """Return the preset that the device does best, and why."""
    device = find_device(name)
    if device.platform == "cpu":
        return "float32", "XLA's CPU kernels are made for float32"
    if device.platform == "tpu":
        return "mixed_bfloat16", "a TPU multiplies in bfloat16"
    if _compute_capability(device) >= 8.0:
        return "mixed_bfloat16", "tensor cores with bfloat16, which needs no loss scale"
    return "mixed_float16", "no tensor cores for bfloat16 before compute capability 8"


def _compute_capability(device: jax.Device) -> float:
    return float(getattr(device, "compute_capability", 0) or 0)


def helps(dtype: str, device: jax.Device) -> Support:
    """Tell whether the device computes faster in ``dtype`` than in float32."""
    if device.platform == "tpu":
        return Support(dtype == "bfloat16", "a TPU multiplies in bfloat16 only")
    if device.platform != "cpu":
        least = 8.0 if dtype == "bfloat16" else 7.0
        return Support(_compute_capability(device) >= least, f"{dtype} tensor cores need compute capability {least}")
    if dtype == "float16":
        return Support(False, "XLA on CPU computes float16 products in float32")
    units = this_processor().fast_units("bfloat16")
    return Support(bool(units), f"this CPU has {', '.join(units) or 'no bfloat16 units'}")


def check_spec(spec: SessionSpec, device: jax.Device) -> None:
    """Refuse what cannot be had, and warn of a policy that cannot help."""
    spec.check_options([], "jax")
    layers.check_policy(spec.policy)
    compute = spec.policy.compute_dtype
    if compute != "float32" and not (faster := helps(compute, device)):
        spec.warn(f"policy {str(spec.policy)!r} runs, but not faster: {faster.reason}", errors.NoGainWarning)


def _runs(dtype: str, device: jax.Device) -> Support:
    if dtype == "float32":
        return Support(True, "XLA compiles every dtype on every device")
    faster = helps(dtype, device)
    return Support(True, faster.reason, faster.ok)


def capabilities(device: jax.Device) -> Capabilities:
    """Return the answers for one device."""
    features = {
        "context_form": Support(False, NO_CONTEXT_FORM),
        "loss_scaling": Support(True),
        "accumulation": Support(True),
        "several_optimizers": Support(True),
        "op_overrides": Support(False, layers.NO_OP_OVERRIDES),
        "layer_overrides": Support(True),
        "master_weights": Support(False, "not implemented in this example"),
        "float8": Support(False, layers.NO_FLOAT8),
        "no_device_wait": Support(True),
    }
    policies = {name: _runs(preset.compute_dtype, device) for name, preset in PRESETS.items()}
    policies["mixed_float8"] = Support(False, layers.NO_FLOAT8)
    return Capabilities(f"{device.platform}:{device.id}", policies, features)
