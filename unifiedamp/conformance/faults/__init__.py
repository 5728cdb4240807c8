"""Faults that any backend may have: one call or one number of it dropped, doubled, late or out of order.

Each is a subclass to be laid over a backend's class (``Fault.over``). The suite must notice every one of them.
"""

from . import conditions, ema, forecaster, reading, recorder, regions, scaling, settings, state, steps, tools
from .registry import FAULTS, Fault

__all__ = [
    "FAULTS", "Fault", "conditions", "ema", "forecaster", "reading", "recorder", "regions", "scaling", "settings",
    "state", "steps", "tools",
]  # fmt: skip
