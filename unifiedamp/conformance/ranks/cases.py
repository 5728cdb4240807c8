"""The suite's cases: topic → trainings that every kind of ranks must get right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from unifiedamp.loss_scale import DynamicLossScale

from .case import SIZES, Array, RankCase, RankKind, Rows

SCALE = DynamicLossScale(initial_scale=8.0, growth_interval=2, max_consecutive_skips=1000)
LONGEST = 300
"""Steps of a case: ranks are watched while they work on one."""
Batches = list[list[list[Array | None]]]
"""Micro-batch → rank → the gradient of each parameter, while a case is being made."""


class Maker:
    """Makes the cases for one kind of ranks.

    Args:
        kind: how they train together.
        count: how many there are.
        seed: of the gradients, which are whole numbers: their mean over ranks is exact.
    """

    def __init__(self, kind: RankKind, count: int, seed: int = 0) -> None:
        self.kind, self.count = kind, count
        self.rng = np.random.default_rng(seed)

    def batches(self, length: int, alike: bool = False) -> Batches:
        """Return random gradients; ``alike`` gives all ranks the same of parameters that each trains for itself."""
        found: Batches = [[self._rows() for _ in range(self.count)] for _ in range(length)]
        for ranks in found if alike else ():
            for rows in ranks:
                for param in self.kind.own:
                    rows[param] = ranks[0][param]
        return found

    def _rows(self) -> list[Array | None]:
        return [self.rng.integers(-3, 4, size).astype(np.float32) for size in SIZES]

    def spoil(self, batches: Batches, index: int, rank: int, value: float, param: int = 0) -> None:
        """Put ``value`` where ``rank`` alone meets it: in its own batch, and in its own part of the parameter."""
        place = min(rank * math.ceil(SIZES[param] / self.count), SIZES[param] - 1)
        row = batches[index][self.kind.reads(rank)][param]
        spoiled = np.array(row if row is not None else np.zeros(SIZES[param]), np.float32)
        spoiled[place] = value
        batches[index][self.kind.reads(rank)][param] = spoiled

    def frozen(self, batches: Batches) -> tuple[tuple[Rows, ...], ...]:
        """Return the batches as a case holds them: ranks that hold one model in parts are given the same."""
        every = range(self.count)
        return tuple(tuple(tuple(ranks[self.kind.reads(rank)]) for rank in every) for ranks in batches)


def overflow(make: Maker) -> list[RankCase]:
    """Inf on each rank in turn, and at last against -inf on another rank."""
    batches = make.batches(2 * make.count + 3)
    for rank in range(make.count):
        make.spoil(batches, 1 + 2 * rank, rank, (-1) ** rank * math.inf, rank % len(SIZES))
    make.spoil(batches, -2, 0, math.inf)
    make.spoil(batches, -2, make.count - 1, -math.inf)
    return [RankCase("inf on each rank in turn", make.frozen(batches), SCALE)]


def nan(make: Maker) -> list[RankCase]:
    """Nan on each rank in turn, the last first."""
    batches = make.batches(make.count + 1)
    for index in range(make.count):
        make.spoil(batches, index, make.count - 1 - index, math.nan, index % len(SIZES))
    return [RankCase("nan on each rank in turn", make.frozen(batches), SCALE)]


def absent(make: Maker) -> list[RankCase]:
    """Each rank's loss in turn leaves out the last parameter, or all; with an optimizer of that parameter alone too.

    The first rank does so beside an inf on another; in one step every rank does.
    """
    if make.kind.absent == "none":
        return []
    left_out = (len(SIZES) - 1,) if make.kind.absent == "some" else range(len(SIZES))
    batches = make.batches(make.count + 4)
    for index in (*range(1, make.count + 1), make.count + 2):
        for param in left_out:
            batches[index][(index - 1) % make.count][param] = None
    make.spoil(batches, make.count + 2, make.count - 1 if make.count > 2 else 0, math.inf, len(SIZES) - 1)
    for rows in batches[make.count + 1] if make.kind.absent != "all" else ():
        rows[-1] = None
    names = {1: "each rank in turn without gradients", 2: "each rank in turn without gradients of one optimizer"}
    return [RankCase(name, make.frozen(batches), SCALE, optimizers=number) for number, name in names.items()]


def accumulation(make: Maker) -> list[RankCase]:
    """Windows of three micro-batches; one rank overflows at each place of a window."""
    batches = make.batches(12)
    for place in range(3):
        make.spoil(batches, 3 * place + place, place % make.count, math.inf, place)
    return [
        RankCase("windows", make.frozen(make.batches(6)), SCALE, window=3),
        RankCase("windows with inf in each place", make.frozen(batches), SCALE, window=3),
    ]


def clipping(make: Maker) -> list[RankCase]:
    """Norms above and below the limit, also in windows and beside an overflow on the last rank."""
    cases = []
    for window in (1, 2):
        batches = make.batches(5 * window, alike=True)
        for ranks in batches[2 * window :]:  # the first two are large
            ranks[:] = [[row if row is None else row / 4 for row in rows] for rows in ranks]
        make.spoil(batches, 4 * window - 1, make.count - 1, math.inf)
        cases.append(RankCase(f"clipped in windows of {window}", make.frozen(batches), SCALE, window, 1.5))
    return cases


def two_optimizers(make: Maker) -> list[RankCase]:
    """Each overflows by itself, on one rank; the scale is updated once."""
    first, last = 0, len(SIZES) - 1
    batches = make.batches(7, alike=True)
    make.spoil(batches, 1, 0, math.inf, first)
    make.spoil(batches, 2, 0, math.inf, last)
    make.spoil(batches, 4, make.count - 1, math.nan, last)
    make.spoil(batches, 5, 0, math.inf, first)
    make.spoil(batches, 5, make.count - 1, -math.inf, last)
    return [
        RankCase("two optimizers", make.frozen(batches), SCALE, optimizers=2),
        RankCase("two optimizers, clipped", make.frozen(batches[:4]), SCALE, max_norm=2.0, optimizers=2),
    ]


def loading(kind: RankKind, count: int) -> list[RankCase]:
    """Return trainings in which the first rank alone loads a state before the third of four steps."""
    make = Maker(kind, count, seed=count)
    batches = make.frozen(make.batches(4))
    return [
        RankCase(f"a {name} that one rank loads", batches, SCALE, loads=2, loaded=name)
        for name in ("scale", "good_steps")
    ]


def random_steps(make: Maker, steps: int) -> list[RankCase]:
    """``steps`` steps with overflows on random ranks, in three settings, each again and again for :data:`LONGEST`."""
    cases = []
    settings = [(1, 1, None), (2, 2, 5.0), (1, 2, 3.0)]
    settings *= max(1, steps // (LONGEST * len(settings)))
    for number, (window, optimizers, limit) in enumerate(settings):
        length = max(4, steps // len(settings))
        batches = make.batches(length * window, alike=True)
        for index in np.flatnonzero(make.rng.random(length * window) < 0.2 / window):
            value = float(make.rng.choice([math.inf, -math.inf, math.nan]))
            rank, param = int(make.rng.integers(make.count)), int(make.rng.integers(len(SIZES)))
            make.spoil(batches, int(index), rank, value, param)
        scale = DynamicLossScale(
            initial_scale=2.0 ** int(make.rng.integers(0, 8)), growth_interval=int(make.rng.integers(1, 5)),
            backoff_factor=float(make.rng.choice([0.5, 0.25])), hysteresis=1 + number % 3, max_scale=2.0**12,
            max_consecutive_skips=10**9,
        )  # fmt: skip
        cases.append(
            RankCase(f"random steps {number}", make.frozen(batches), scale, window, limit, optimizers, read_every=10)
        )
    return cases


TOPICS: dict[str, Callable[[Maker], Sequence[RankCase]]] = {
    "overflow": overflow, "nan": nan, "absent": absent, "accumulation": accumulation, "clipping": clipping,
    "two optimizers": two_optimizers,
}  # fmt: skip


def cases_of(kind: RankKind, count: int, steps: int) -> dict[str, list[RankCase]]:
    """Return topic → cases for these ranks; ``steps`` of them random."""
    make = Maker(kind, count, seed=count)
    found = {topic: list(build(make)) for topic, build in TOPICS.items()}
    return {**found, "random": random_steps(make, steps)}


def resumed(kind: RankKind, before: int, after: int) -> tuple[RankCase, RankCase]:
    """Return a training on ``before`` ranks and what follows it on ``after``, whose state and weights are to be set."""
    halves = []
    for count, length in ((before, 6), (after, 6)):
        make = Maker(kind, count, seed=count + length)
        batches = make.batches(length, alike=True)
        make.spoil(batches, 2, count - 1, math.inf)
        halves.append(RankCase(f"half of {count} ranks", make.frozen(batches), SCALE, momentum=0.0))
    return halves[0], halves[1]
