"""The rows of ``amp.explain()``."""

from __future__ import annotations

from unifiedamp.backend import PlanRow, SessionSpec

from . import layers
from .capabilities import NO_CONTEXT_FORM


def explain(spec: SessionSpec) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``."""
    policy, scale = spec.policy, spec.loss_scale
    compute = f"layer.promote_dtype(..., dtype={policy.compute_dtype})"
    rows = [
        PlanRow("autocast", policy.compute_dtype, compute, "native", "the region is a jax.make_user_context value"),
        PlanRow(
            "keep_norm_float32", str(policy.keep_norm_float32), f"{len(layers.NORMS)} normalizing layers of flax.nnx"
        ),
        PlanRow("output_dtype", policy.output_dtype, "model.__call__ ends with astype", "emulated"),
        PlanRow("compile", "amp.compile", "flax.nnx.jit", note="traces keyed by region, modes and place in the window"),
        PlanRow("context_form", "amp.scale_loss", "-", "unavailable", NO_CONTEXT_FORM),
        PlanRow("op_overrides", "-", "-", "unavailable", layers.NO_OP_OVERRIDES),
    ]
    rows += [PlanRow(f"layer_overrides.{glob}", to, f"dtype={to}") for glob, to in policy.layer_overrides.items()]
    if spec.accumulate_steps > 1:
        rows.append(
            PlanRow("accumulate_steps", str(spec.accumulate_steps), "sums of gradients in the session", "emulated")
        )
    if scale.enabled:
        rows.append(PlanRow("skip", "on the device", "flax.nnx.cond around optimizer.update"))
        rows.append(PlanRow("scale", str(scale), "jnp.where over scalars", "emulated", "optax has no loss scale"))
    else:
        rows.append(PlanRow("scale", "none", "optimizer.update", note="no scaling, no finite check"))
    return rows
