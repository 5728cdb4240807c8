"""What several ranks are asked to train, and what each of them says it did; plain values that go through pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unifiedamp.loss_scale import DynamicLossScale

Array = npt.NDArray[Any]
Rows = tuple[Array | None, ...]
"""The true gradient of each parameter on one rank; None where the rank's loss leaves the parameter out."""

SIZES = (8, 6, 5)
"""Of the parameters: over four ranks one is cut evenly, one leaves a rank with nothing, and one is cut unevenly."""

LEARNING_RATE = 2.0**-6


def owned(optimizers: int) -> tuple[range, ...]:
    """Return the parameters that each of one or two optimizers trains, by index."""
    return (range(len(SIZES)),) if optimizers == 1 else (range(len(SIZES) - 1), range(len(SIZES) - 1, len(SIZES)))


def start_weights() -> tuple[Array, ...]:
    """Return the float32 parameters that training begins with."""
    return tuple(np.linspace(-1.0, 1.0, size, dtype=np.float32) for size in SIZES)


@dataclass(frozen=True)
class RankKind:
    """A way in which a framework lets ranks train together.

    Attributes:
        reduction: what is made of the ranks' gradients: their "mean" or their "sum".
        counts: with how many ranks the suite runs it; it must run with one besides.
        own: parameters, by index, whose gradients nothing reduces: each rank trains its own copy.
        shared_by: so many neighbouring ranks, or all where there are fewer, hold one model in parts and are given the
            same batch.
        absent: what one rank's loss may leave out: "some" parameters, "all" at once, "any" of them, or "none".
        other_forms: forms besides "eager" that the suite runs, with the first of ``counts``; None for all.
        costly: eager steps of the fewest ranks run alone, unless ``--amp-trajectories`` asks for 10,000.
        quick: a step takes milliseconds; 10,000 random ones then run, eager, with the first of ``counts``.
        loads_alone: each rank has a session, which may load a state while the others' do not.
    """

    reduction: str = "mean"
    counts: tuple[int, ...] = (2, 4)
    own: frozenset[int] = frozenset()
    shared_by: int = 1
    absent: str = "none"
    other_forms: tuple[str, ...] | None = None
    costly: bool = False
    quick: bool = False
    loads_alone: bool = False

    def runs(self, form: str, full: bool) -> tuple[int, ...]:
        """Return with how many ranks the suite runs a form: eager steps with all, others with the fewest."""
        if self.costly and not full:
            return self.counts[:1] if form == "eager" else ()
        if form == "eager":
            return self.counts
        return self.counts[:1] if self.other_forms is None or form in self.other_forms else ()

    def reads(self, rank: int) -> int:
        """Return the rank whose batch a rank is given."""
        return rank // self.shared_by * self.shared_by


@dataclass(frozen=True)
class RankCase:
    """One training: a session, a model of parameters ``w0``, ``w1``, … and SGD with :data:`LEARNING_RATE`.

    Attributes:
        name: unique among those of a run.
        batches: micro-batch → rank → true gradients.
        scale: the session's loss scale.
        window: micro-batches per step (``accumulate_steps``).
        max_norm: for ``amp.clip_grad_norm`` of each optimizer; None leaves gradients as they are.
        optimizers: 1, or 2 that train different parameters (:func:`owned`).
        momentum: of SGD.
        weights: what the parameters begin with, float32.
        state: a session's state to load after ``amp.prepare``; None begins afresh.
        read_every: weights are wanted after each step with this many before it, and after the last.
        loads: a step before which the first rank alone loads a state that differs from its own; all ranks must refuse.
        loaded: the number of the state that differs, a field of ``ScaleState``.
    """

    name: str
    batches: tuple[tuple[Rows, ...], ...]
    scale: DynamicLossScale
    window: int = 1
    max_norm: float | None = None
    optimizers: int = 1
    momentum: float = 0.5
    weights: tuple[Array, ...] = field(default_factory=start_weights)
    state: Mapping[str, Any] | None = None
    read_every: int = 1
    loads: int | None = None
    loaded: str = "scale"

    @property
    def leaves_out(self) -> bool:
        """Whether some rank's loss leaves a parameter out."""
        return any(row is None for ranks in self.batches for rows in ranks for row in rows)

    def reads_after(self, step: int) -> bool:
        """Whether weights are wanted after a step, counted from 0."""
        return step % self.read_every == 0 or (step + 1) * self.window == len(self.batches)


@dataclass(frozen=True)
class RankStep:
    """What one rank says after a step.

    Attributes:
        applied, skipped: by how much the session's counters rose.
        scale: the loss scale, for the next step.
        norms: what ``amp.clip_grad_norm`` returned for each optimizer; empty without clipping.
        weights: the parameters, whole, in float64; None where they are not wanted.
    """

    applied: int
    skipped: int
    scale: float
    norms: tuple[float, ...] = ()
    weights: tuple[Array, ...] | None = None


@dataclass(frozen=True)
class RankTrace:
    """What one rank did in a case.

    Attributes:
        steps: in order; with ``RankCase.loads`` the last one says what the rank was like when it refused.
        state: the session's afterwards.
        refused: the error that ended a case with ``RankCase.loads``.
    """

    steps: Sequence[RankStep]
    state: Mapping[str, Any]
    refused: str = ""


@dataclass(frozen=True)
class RankFailure:
    """A case that did not end.

    Attributes:
        why: the error, or the stacks of all processes where they hung.
    """

    why: str


Answers = dict[str, list[RankTrace] | RankFailure]
"""Case → what each rank did, in the order of ranks."""
