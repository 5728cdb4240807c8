"""How the steps of a run are parted: first ones that compile and warm up, then turns against the clock."""

from __future__ import annotations

LEAST = 4
"""Steps of a script that anything can be said of."""
WARM_UP = 10
"""Steps before the clock, at most; of few steps, a fifth."""
LEAST_TURN = 2
"""Steps of a turn: the first one settles, the others are timed."""


def turns_of(steps: int, rounds: int) -> tuple[int, ...]:
    """Return the numbers of the steps that end a turn: the warm-up, then up to ``rounds`` turns of equal length.

    Args:
        steps: of the run, at least :data:`LEAST`.
        rounds: of timing.
    """
    warm_up = max(LEAST_TURN, min(WARM_UP, steps // 5))
    rounds = max(1, min(rounds, (steps - warm_up) // LEAST_TURN))
    return tuple([warm_up, *(warm_up + (steps - warm_up) * number // rounds for number in range(1, rounds + 1))])
