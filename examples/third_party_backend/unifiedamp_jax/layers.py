"""The Flax layers that follow a policy, and the policies that are not supported."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from unifiedamp.backend import Policy, errors

NORMS = (
    nnx.BatchNorm, nnx.LayerNorm, nnx.GroupNorm, nnx.InstanceNorm, nnx.RMSNorm, nnx.WeightNorm, nnx.SpectralNorm,
)  # fmt: skip
"""Layers that ``keep_norm_float32`` keeps in float32."""

NO_OP_OVERRIDES = "JAX has no dispatch by operation; Flax promotes dtypes layer by layer: use layer_overrides"

NO_FLOAT8 = "this example casts whole layers, and parameters cannot be float8; the nearest is 'mixed_bfloat16'"


def check_policy(policy: Policy) -> None:
    """Refuse unsupported policies.

    Raises:
        PolicyNotSupportedError: the policy computes in float8.
        UnsupportedError: the policy has ``op_overrides``.
    """
    if policy.compute_dtype == "float8":
        raise errors.PolicyNotSupportedError(f"policy '{policy}': {NO_FLOAT8}")
    if policy.op_overrides:
        raise errors.UnsupportedError(f"op_overrides ({', '.join(policy.op_overrides)}): {NO_OP_OVERRIDES}")


def layers(model: nnx.Module) -> dict[str, Any]:
    """Return dotted path → layer, for the layers with a ``promote_dtype`` hook."""
    found = {".".join(map(str, path)): module for path, module in nnx.iter_modules(model, graph=True)}
    return {path: module for path, module in found.items() if hasattr(module, "promote_dtype")}


def cast_floating(tree: Any, dtype: str) -> Any:
    """Cast the floating-point arrays of a tree."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
