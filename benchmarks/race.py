"""Several configurations of one training, each timed alternately with the reference configurations."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from timing import TURN_SECONDS, Loop, Timed, in_rounds, ratio_of, say, steps_for

WARM_UP, LEAST_WARM_UP, WARM_UP_SECONDS = 24, 12, 10.0
"""Warm-up steps before timing, the minimum after ``WARM_UP_SECONDS``, and that time. A step is captured only after
several calls, and after the dynamic loss scale has backed off."""

Memory = Callable[[Callable[[], Any]], Mapping[str, int]]


@dataclass(frozen=True)
class Limits:
    """Limits of a measurement.

    Attributes:
        rounds: maximum number of rounds per configuration.
        seconds: time limit per configuration; no round starts after it.
        turn: seconds per turn.
    """

    rounds: int
    seconds: float = math.inf
    turn: float = TURN_SECONDS


@dataclass(frozen=True)
class Standing:
    """One configuration's row.

    Attributes:
        labels: column → label of this row.
        ms: milliseconds per step, the median of its turns; ``rate`` is ``unit`` per second.
        ratios: name of a reference → time divided by the reference's time (median of their common rounds), and the 95 %
            interval of that median (bootstrap).
        memory: bytes on the device: ``peak`` allocated, warm-up and compilation included, and ``held`` by the
            allocator in steady state, memory pools of captured graphs included. Empty if the device does not report it.
        losses: losses of the first and last step of the warm-up.
        ready_s: seconds to build, compile and warm up.
        failed: why it was not measured; the numbers are then invalid.
    """

    labels: Mapping[str, str]
    ms: float = 0.0
    rate: float = 0.0
    unit: str = ""
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    ready_s: float = 0.0
    rounds: int = 0
    steps_per_turn: int = 0
    failed: str = ""


@dataclass
class Ready:
    """A configuration that is built and warm.

    Attributes:
        loop: the loop to time.
        losses, memory, ready_s: see :class:`Standing`.
    """

    loop: Timed
    losses: tuple[float, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    ready_s: float = 0.0


def warm_up(
    loop: Loop, number: Callable[[Any], float], memory: Memory | None = None, begun: float | None = None
) -> Ready:
    """Run a loop's first steps, which compile it.

    Args:
        loop: a new loop.
        number: converts a loss to a float.
        memory: takes a function that runs some steps; returns :attr:`Standing.memory`. Called once the loop is warm.
        begun: time at which building started; None means now.
    """
    begun = time.perf_counter() if begun is None else begun
    with loop.around():
        first = number(loop.step())
    since, steps = time.perf_counter(), 1
    while steps < LEAST_WARM_UP or (steps < WARM_UP - 1 and time.perf_counter() - since < WARM_UP_SECONDS):
        loop.turn(1)
        steps += 1
    with loop.around():
        last = number(loop.step())
    used = memory(lambda: loop.turn(3)) if memory else {}
    return Ready(loop, (first, last), used, time.perf_counter() - begun)


class Race:
    """One training, in several configurations.

    Args:
        unit: unit of throughput: "img", "tok".
        per_step: units per step.
        limits: limits of the measurement.
    """

    def __init__(self, unit: str, per_step: int, limits: Limits) -> None:
        self._unit, self._per_step, self._limits = unit, per_step, limits
        self._stayed: dict[str, Ready] = {}

    def enter(self, labels: Mapping[str, str], name: str, ready: Ready, stays: bool) -> Standing:
        """Time a configuration alternately with the references.

        Args:
            labels: labels of its row.
            name: its name as a reference.
            ready: the configuration.
            stays: use it as a reference for later ones.
        """
        runners = {**self._stayed, name: ready}
        loops = [each.loop for each in runners.values()]
        steps = [steps_for(loop.turn(3), self._limits.turn) for loop in loops]
        times = in_rounds(loops, steps, self._limits.rounds, self._limits.seconds)
        column = dict(zip(runners, times.T, strict=True))
        if stays:
            self._stayed[name] = ready
        own = float(np.median(column[name]))
        ratios = {other: ratio_of(column[name], column[other]) for other in self._stayed}
        standing = Standing(
            labels, own * 1e3, self._per_step / own, f"{self._unit}/s", ratios, dict(ready.memory), ready.losses,
            round(ready.ready_s, 1), len(times), steps[-1],
        )  # fmt: skip
        say(f"{', '.join(labels.values())}: {_summary(standing)}")
        return standing

    def drop(self, loop: Timed) -> None:
        """Remove a configuration from the references."""
        self._stayed = {name: ready for name, ready in self._stayed.items() if ready.loop is not loop}


def failure(labels: Mapping[str, str], why: str | Exception) -> Standing:
    """Return the row of a configuration that could not be measured."""
    if isinstance(why, Exception):
        traceback.print_exception(why)
        why = f"{type(why).__name__}: {why}".strip().partition("\n")[0]
    say(f"{', '.join(labels.values())}: not measured: {why}")
    return Standing(labels, failed=why)


def _summary(row: Standing) -> str:
    speeds = ", ".join(f"{1 / ratio:.2f} × {name}" for name, (ratio, *_) in row.ratios.items())
    losses = " → ".join(f"{loss:.3f}" for loss in row.losses)
    return f"{row.ms:.3f} ms, {row.rate:.0f} {row.unit}; {speeds} (ready in {row.ready_s:.0f} s; loss {losses})"
