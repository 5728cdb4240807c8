"""Precision policies: the value, its presets and text form, and globs over layer names."""

from .dtypes import COMPUTE_DTYPES, DTYPES, canonical_dtype
from .float8 import PRODUCTS, RECIPES, Float8Recipe
from .policy import OP_CHOICES, OP_VOCABULARY, PRESETS, AnyPolicy, FrozenDict, Policy
from .schedule import PolicySchedule

__all__ = [
    "COMPUTE_DTYPES",
    "DTYPES",
    "OP_CHOICES",
    "OP_VOCABULARY",
    "PRESETS",
    "PRODUCTS",
    "RECIPES",
    "AnyPolicy",
    "Float8Recipe",
    "FrozenDict",
    "Policy",
    "PolicySchedule",
    "canonical_dtype",
]
