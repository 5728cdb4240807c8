"""How the steps of a run are parted: first ones that compile and warm up, then turns against the clock."""

from __future__ import annotations

LEAST = 4
"""Steps of a script that anything can be said of."""
WARM_UP = 10
"""Steps before the clock, at most; of few steps, a fifth."""
LEAST_TURN = 2
"""Steps of a turn: the first one settles, the others are timed."""


STEPS = 100
"""Of a run, unless it is said; more where they are fast."""
TURN_SECONDS = 0.5
"""How long a turn takes at least, unless the steps are said."""
MOST = 2000
"""Steps of a run whose number is not said."""


def warm_up_of(steps: int) -> int:
    """Return the steps before the clock."""
    return max(LEAST_TURN, min(WARM_UP, steps // 5))


def ends_of(steps: int, rounds: int, warm_up: int) -> list[int]:
    """Return the numbers of the steps that end the turns after the warm-up: ``rounds`` of equal length, or fewer."""
    rounds = max(1, min(rounds, (steps - warm_up) // LEAST_TURN))
    return [warm_up + (steps - warm_up) * number // rounds for number in range(1, rounds + 1)]


def steps_for(seconds_per_step: float, rounds: int) -> int:
    """Return the steps of a run that fill its turns, where none were asked for."""
    turn = TURN_SECONDS / max(seconds_per_step, 1e-6)
    return max(STEPS, min(MOST, round(WARM_UP + rounds * turn)))
