"""Precision policies: the value, its presets and text form, and globs over layer names."""

from .policy import (
    COMPUTE_DTYPES,
    DTYPES,
    OP_CHOICES,
    OP_VOCABULARY,
    PRESETS,
    FrozenDict,
    Policy,
    canonical_dtype,
)

__all__ = [
    "COMPUTE_DTYPES",
    "DTYPES",
    "OP_CHOICES",
    "OP_VOCABULARY",
    "PRESETS",
    "FrozenDict",
    "Policy",
    "canonical_dtype",
]
