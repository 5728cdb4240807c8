"""All mutants, by name."""

from . import broken, broken_averages, broken_conditions, broken_gradients, broken_orders
from .registry import MUTANTS

__all__ = ["MUTANTS", "broken", "broken_averages", "broken_conditions", "broken_gradients", "broken_orders"]
