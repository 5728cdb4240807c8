"""All mutants, by name."""

from . import broken, broken_gradients, broken_orders
from .registry import MUTANTS

__all__ = ["MUTANTS", "broken", "broken_gradients", "broken_orders"]
