"""The transition of the loss scale: every rule, in one place. Backends are tested against it.

State: ``scale`` (a float32 value) and ``good_steps``. Once per iteration, when the gradients are complete::

    some gradient not finite:  bad_steps += 1; good_steps = 0
                               if bad_steps >= hysteresis: scale = max(min_scale, scale * backoff_factor)
    all finite:                bad_steps = 0; good_steps += 1
                               if good_steps == growth_interval:
                                   good_steps = 0; scale = min(max_scale, scale * growth_factor)

With ``hysteresis_reset="growth"``, ``hysteresis`` counts the non-finite iterations since the scale last grew instead of
those in a row (``hysteresis_steps``).

This is the algorithm of Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2, with the bounds and
the hysteresis that today's frameworks lack. ``scripts/make_vectors.py`` writes the conformance vectors from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from .state import ScaleState, float32


class Rules(Protocol):
    """The settings that the transition reads."""

    @property
    def growth_factor(self) -> float:
        """The factor of a growth."""

    @property
    def backoff_factor(self) -> float:
        """The factor of a backoff."""

    @property
    def growth_interval(self) -> int:
        """Finite iterations in a row before a growth."""

    @property
    def hysteresis(self) -> int:
        """Non-finite iterations before a backoff."""

    @property
    def hysteresis_reset(self) -> str:
        """What ends the count of them: ``"good_step"`` or ``"growth"``."""

    @property
    def scale_bounds(self) -> tuple[float, float]:
        """The smallest and largest scale."""


def keeps_hysteresis(rules: Rules) -> bool:
    """Return whether overflows before a finite iteration still count, so that ``hysteresis_steps`` is needed."""
    return rules.hysteresis > 1 and rules.hysteresis_reset == "growth"


def next_state(rules: Rules, state: ScaleState, found_inf: bool) -> ScaleState:
    """Return the state after one iteration; pure.

    Counts of applied and skipped steps do not change: several optimizers may share one iteration.
    """
    if found_inf:
        bad, scale = state.bad_steps + 1, state.scale
        spent = min(state.hysteresis_steps + 1, rules.hysteresis) if keeps_hysteresis(rules) else 0
        if (spent or bad) >= rules.hysteresis:
            scale = max(float32(rules.scale_bounds[0]), float32(scale * rules.backoff_factor))
        return replace(state, scale=scale, good_steps=0, bad_steps=bad, hysteresis_steps=spent)
    good = state.good_steps + 1
    if good < rules.growth_interval:
        return replace(state, good_steps=good, bad_steps=0)
    scale = min(float32(rules.scale_bounds[1]), float32(state.scale * rules.growth_factor))
    return replace(state, scale=scale, good_steps=0, bad_steps=0, hysteresis_steps=0)


def within(rules: Rules, state: ScaleState) -> ScaleState:
    """Return the nearest state that these rules can reach, of one that was saved under others; pure."""
    low, high = map(float32, rules.scale_bounds)
    good = min(state.good_steps, rules.growth_interval - 1)
    spent = min(state.hysteresis_steps, rules.hysteresis) if keeps_hysteresis(rules) else 0
    return replace(state, scale=min(max(state.scale, low), high), good_steps=good, hysteresis_steps=spent)
