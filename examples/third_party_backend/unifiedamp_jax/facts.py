"""JAX's capabilities on a device, and the rows of ``amp.explain()``."""

from __future__ import annotations

from pathlib import Path

import jax

from unifiedamp.backend import FEATURES, PRESETS, Capabilities, PlanRow, SessionSpec, Support, errors

from . import ops

MISSING = {
    "context_form": "JAX differentiates functions, not values",
    "op_overrides": ops.NO_OP_OVERRIDES,
    "float8": ops.NO_FLOAT8,
    "master_weights": "nobody has written it yet",
    "float32_weights": "nobody has written it yet",
    "convert_model": "nobody has written it yet",
    "recording": "nobody has written its watching of layers yet",
    "shape_advice": "XLA pads matrix products by itself",
    "kernel_profile": "jax.profiler's traces are not read here",
}


def find_device(name: str | None) -> jax.Device:
    """Return a session's device: "cpu", "gpu:1", "tpu"; None is JAX's default.

    Raises:
        ConfigError: there is no such device.
    """
    if name is None:
        return jax.devices()[0]
    platform, _, index = name.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        known = ", ".join(f"{one.platform}:{one.id}" for one in jax.devices())
        raise errors.ConfigError(f"JAX has no device {name!r} (it has {known}): {error}") from error


def default_policy(name: str | None) -> tuple[str, str]:
    """Return the recommended preset of the device, and the reason."""
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
    """Return whether ``dtype`` is faster than float32 on the device."""
    if device.platform == "tpu":
        return Support(dtype == "bfloat16", "a TPU multiplies in bfloat16 only")
    if device.platform != "cpu":
        least = 8.0 if dtype == "bfloat16" else 7.0
        return Support(_compute_capability(device) >= least, f"{dtype} tensor cores need compute capability {least}")
    if dtype == "float16":
        return Support(False, "XLA on CPU computes float16 products in float32")
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    has = "avx512_bf16" in flags or "amx_bf16" in flags
    return Support(has, f"this CPU has {'' if has else 'neither '}AVX512-BF16 {'or' if has else 'nor'} AMX")


def check_spec(spec: SessionSpec, device: jax.Device) -> None:
    """Refuse unsupported settings; warn about a policy that is not faster."""
    spec.check_options([], "jax")
    ops.check_policy(spec.policy)
    compute = spec.policy.compute_dtype
    if compute != "float32" and not (faster := helps(compute, device)):
        spec.warn(f"policy {str(spec.policy)!r} runs, but not faster: {faster.reason}", errors.NoGainWarning)


def _runs(dtype: str, device: jax.Device) -> Support:
    if dtype == "float32":
        return Support(True, "XLA compiles every dtype on every device")
    faster = helps(dtype, device)
    return Support(True, faster.reason, faster.ok)


def capabilities(device: jax.Device) -> Capabilities:
    """Return the capabilities of one device."""
    features = {name: Support(name not in MISSING, MISSING.get(name, "")) for name in FEATURES}
    policies = {name: _runs(preset.compute_dtype, device) for name, preset in PRESETS.items()}
    policies["mixed_float8"] = Support(False, ops.NO_FLOAT8)
    return Capabilities(f"{device.platform}:{device.id}", policies, features)


def explain(spec: SessionSpec) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``."""
    policy, scale = spec.policy, spec.loss_scale
    compute = f"layer.promote_dtype(..., dtype={policy.compute_dtype})"
    rows = [
        PlanRow("autocast", policy.compute_dtype, compute, "native", "the region is a jax.make_user_context value"),
        PlanRow("keep_norm_float32", str(policy.keep_norm_float32), f"{len(ops.NORMS)} normalizing layers of flax.nnx"),
        PlanRow("output_dtype", policy.output_dtype, "model.__call__ ends with astype", "emulated"),
        PlanRow("compile", "amp.compile", "flax.nnx.jit", note="traces keyed by region, modes and place in the window"),
        PlanRow("context_form", "amp.scale_loss", "-", "unavailable", MISSING["context_form"]),
        PlanRow("op_overrides", "-", "-", "unavailable", MISSING["op_overrides"]),
    ]
    rows += [PlanRow(f"layer_overrides.{glob}", to, f"dtype={to}") for glob, to in policy.layer_overrides.items()]
    if scale.enabled:
        rows.append(PlanRow("skip", "on the device", "flax.nnx.cond around optimizer.update"))
        rows.append(PlanRow("scale", str(scale), "jnp.where over scalars", "emulated", "optax has no loss scale"))
    else:
        rows.append(PlanRow("scale", "none", "optimizer.update", note="no scaling, no finite check"))
    return rows
