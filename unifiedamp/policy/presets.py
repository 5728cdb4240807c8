"""Names of policies: presets, other libraries' names for them, and names that are ambiguous."""

from __future__ import annotations

from typing import Any

from ..errors import PolicyError, nearest, shown
from .float8 import BLOCK_RECIPES

PRESET_FIELDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "mixed_float16": {"compute_dtype": "float16"},
    "mixed_bfloat16": {"compute_dtype": "bfloat16"},
    "mixed_float8": {"compute_dtype": "float8"},
    **{
        dtype: {"param_dtype": dtype, "compute_dtype": dtype, "output_dtype": dtype, "keep_norm_float32": False}
        for dtype in ("float16", "bfloat16")
    },
}
"""Preset → what its ``Policy`` has other than the defaults."""

BLOCK_POLICIES = {f"mixed_{recipe}": recipe for recipe in BLOCK_RECIPES}
"""Name of ``mixed_float8`` with a block format as its recipe → that recipe."""

ALIASES = {
    "o0": "float32", "o1": "mixed_float16", "o2": "mixed_float16", "o3": "float16",  # Apex
    "32-true": "float32", "16-mixed": "mixed_float16", "bf16-mixed": "mixed_bfloat16",  # Lightning
    "16-true": "float16", "bf16-true": "bfloat16",
    "no": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16", "fp8": "mixed_float8",  # Accelerate
    "float8_from_mixed_bfloat16": "mixed_float8",  # Keras 3
}  # fmt: skip
"""Names of other libraries → the preset with that meaning. Apex's O1 and O2 differ in how they cast, not
in what trains: float32 master weights, float16 computations, float32 batch norm, dynamic loss scale."""

AMBIGUOUS = {
    "16": "mixed_float16", "half": "mixed_float16", "mixed": "mixed_float16", "amp": "mixed_float16",
    "16bit": "mixed_float16", "mixed_precision": "mixed_float16", "mixed_half": "mixed_float16",
    "8": "mixed_float8", "8bit": "mixed_float8", "float8": "mixed_float8", "8-mixed": "mixed_float8",
    # Lightning's keep the parameters in bfloat16 or float16, and scale by the history of maxima.
    "transformer-engine": "mixed_float8;recipe=delayed", "transformer-engine-float16": "mixed_float8;recipe=delayed",
    "32": "float32", "full": "float32", "float": "float32",
}  # fmt: skip
"""Names that mean different things in different libraries → the likely meaning."""


def preset_fields(name: str) -> dict[str, Any]:
    """Return the arguments of the ``Policy`` that a name stands for.

    Raises:
        PolicyError: unknown (with the nearest name) or ambiguous (with the likely meaning).
    """
    key = name.lower()
    key = ALIASES.get(key, key)
    if key in PRESET_FIELDS:
        return dict(PRESET_FIELDS[key])
    if key in BLOCK_POLICIES:
        return {**PRESET_FIELDS["mixed_float8"], "recipe": BLOCK_POLICIES[key]}
    if key in AMBIGUOUS:
        raise PolicyError(
            f"policy {name!r} is ambiguous (it means different things in different libraries): "
            f"write {AMBIGUOUS[key]!r} if that is what you mean, or one of {', '.join(PRESET_FIELDS)}"
        )
    full = key.replace("bf16", "bfloat16").replace("fp16", "float16").replace("fp8", "float8")
    raise PolicyError(
        f"unknown policy {shown(name)}{nearest(full, [*PRESET_FIELDS, *BLOCK_POLICIES, *ALIASES])} "
        f"(presets: {', '.join(PRESET_FIELDS)})"
    )


def preset_name(*dtypes: str) -> str:
    """Return the preset with these param, compute and output dtypes, or an empty string."""
    for name, fields in PRESET_FIELDS.items():
        if dtypes == tuple([fields.get(f"{kind}_dtype", "float32") for kind in ("param", "compute", "output")]):
            return name
    return ""
