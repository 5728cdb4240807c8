"""Where two backends part: from the same weights and batches, by more than rounding explains.

What rounding explains: each operation that a value came through adds an error of about ``u + sqrt(n) * u32``. ``u`` is
half the epsilon of the dtype that it computes in, ``u32`` that of float32, in which sums of ``n`` terms are added up,
in an order of each framework's own. Errors of ``d`` operations are independent and add up to ``sqrt(d)`` times as much;
each step starts from the errors of those before, so that step ``t`` may be off ``t`` times as far. ``SAFETY`` times
that is allowed, and what storing the value may have cost.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from ...output.files import temporary_folder
from ...policy import Policy
from ..tries import Shown, Tries
from ..workers import WorkerError
from .answers import Begun, ask
from .rows import Task
from .run import Options, begin, start_job

SAFETY = 8.0
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-3}
"""dtype → half its epsilon: the relative error of one rounding. float8 has two layouts; gradients take the coarser."""


@dataclass(frozen=True)
class Entry:
    """One value of a trace; see ``trace.py``.

    Attributes:
        step: optimizer step, from 1.
        layer, what: "conv2.kernel", "gradient".
        depth: operations that the value came through, each of which rounds.
        floor: relative error of storing it.
        scale: a norm to compare errors to; 0 takes the value's own.
        value: a float64 array.
    """

    step: int
    layer: str
    what: str
    depth: int
    floor: float
    scale: float
    value: Any


@dataclass(frozen=True)
class Place:
    """Somewhere in a trace, and how far two traces are from each other there, relatively.

    Attributes:
        allowed: how far rounding can take them.
    """

    step: int
    layer: str
    what: str
    distance: float
    allowed: float

    def __str__(self) -> str:
        where = f"step {self.step}, {self.what} of {self.layer}"
        return f"{where}: {self.distance:.1e} apart, rounding explains {self.allowed:.1e}"


@dataclass(frozen=True)
class Verdict:
    """What two traces say.

    Attributes:
        diverged: the first place where they differ by more than rounding explains; None when there is none.
        closest: the place where they come nearest to that limit, up to the first divergence.
    """

    diverged: Place | None
    closest: Place | None


def judge(mine: Sequence[Entry], theirs: Sequence[Entry], dtype: str, terms: int) -> Verdict:
    """Compare two traces of the same run.

    Args:
        mine, theirs: the traces, entry by entry the same places.
        dtype: what the policy computes in.
        terms: the most terms that one number is the sum of.
    """
    closest: Place | None = None
    for one, other in zip(mine, theirs, strict=True):
        place = Place(one.step, one.layer, one.what, distance(one, other), allowed(one, other, dtype, terms))
        if not place.distance <= place.allowed:
            return Verdict(place, place)
        if closest is None or _share(place) > _share(closest):
            closest = place
    return Verdict(None, closest)


def _share(place: Place) -> float:
    return place.distance / place.allowed if place.allowed else 0.0


def distance(one: Entry, other: Entry) -> float:
    """Return the norm of the difference over the larger norm; inf where one is not finite and the other is another."""
    import numpy as np

    if np.array_equal(one.value, other.value, equal_nan=True):
        return 0.0
    norms = [one.scale, other.scale] if one.scale else [float(np.linalg.norm(each.value)) for each in (one, other)]
    found = float(np.linalg.norm(one.value - other.value)) / max(*norms, 1e-300)
    return found if math.isfinite(found) else math.inf


def allowed(one: Entry, other: Entry, dtype: str, terms: int) -> float:
    """Return how far rounding can separate two values; see the module."""
    each = UNIT[dtype] + math.sqrt(terms) * UNIT["float32"]
    return SAFETY * math.sqrt(one.depth) * each * one.step + max(one.floor, other.floor)


def read_trace(path: Path) -> tuple[list[Entry], int]:
    """Return the entries of a trace, and the most terms that one of its numbers is the sum of."""
    import numpy as np

    with np.load(path) as arrays:
        about = json.loads(str(arrays["about"]))
        entries = [Entry(**entry, value=arrays[f"value{i}"]) for i, entry in enumerate(about["entries"])]
    return entries, int(about["terms"])


def parity(
    backends: Sequence[str],
    policies: Sequence[str],
    mode: str,
    size: int | None,
    steps: int,
    options: Options,
    show: Shown,
) -> list[dict[str, Any]]:
    """Trace the first steps on every backend under every policy, and judge each two backends.

    Args:
        backends, policies: by name.
        mode: of ``amp.compile``.
        size: samples per batch; None for the workload's own.
        steps: optimizer steps.
        options: the workload.
        show: shows each trace as it begins.

    Returns:
        For each policy and pair ``{"policy", "dtype", "backends", "diverged", "closest"}``, where a trace was possible;
        else ``{"policy", "dtype", "backends": [name], "failed": why}``.
    """  # fmt: skip
    found: list[dict[str, Any]] = []
    tries = Tries(show)
    tries.expect(len(policies) * len(backends))
    with temporary_folder() as folder:
        for policy in policies:
            dtype = Policy.parse(policy).compute_dtype
            traces: dict[str, tuple[list[Entry], int]] = {}
            for name in backends:
                task = Task(name, policy, mode, size)
                tries.begin(f"tracing {task}")
                try:
                    traces[name] = _trace(task, steps, options, Path(folder) / "trace.npz")
                except WorkerError as error:
                    found.append({"policy": policy, "dtype": dtype, "backends": [name], "failed": str(error)})
            found += [_pair(policy, dtype, pair, traces) for pair in itertools.combinations(traces, 2)]
    return found


def _pair(
    policy: str, dtype: str, pair: tuple[str, str], traces: Mapping[str, tuple[list[Entry], int]]
) -> dict[str, Any]:
    (mine, terms), (theirs, _) = traces[pair[0]], traces[pair[1]]
    verdict = judge(mine, theirs, dtype, terms)
    return {"policy": policy, "dtype": dtype, "backends": list(pair), **asdict(verdict)}


def _trace(task: Task, steps: int, options: Options, path: Path) -> tuple[list[Entry], int]:
    with (
        temporary_folder() as out,
        start_job(task.backend) as worker,
    ):
        ask(worker, Begun, begin(options, task, task.batch_size, out), options.timeout)
        ask(worker, int, {"do": "trace", "steps": steps, "path": str(path)}, options.timeout)
        try:
            return read_trace(path)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise worker.garbage(error) from error
