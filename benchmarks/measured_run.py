"""What a measured run costs per step: a loop under ``unifiedamp compare -- …``, against the same loop alone.

    python benchmarks/measured_run.py [--backend torch] [--width 256] [--rounds 9]

Two sessions of one process train the same model, in turns; one of them is followed as in a measured run. Prints the
ratio of their times per step (median over the rounds, smallest, largest), and the calls of Python that following adds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp.measured import VARIABLE
from unifiedamp.measured.request import RunRequest
from unifiedamp.workloads.interleaved import interleave, ratio

STEPS = 10**9


def loop_of(backend: str, policy: str, width: int, compiled: bool) -> Callable[[int], float]:
    """Return a function that trains some steps and returns the seconds of one."""
    harness, rng = load_harness(backend), np.random.default_rng(0)
    layers = [(rng.standard_normal((width, width), np.float32) / width**0.5, np.zeros(width, np.float32))] * 3
    amp = ua.Amp(backend, policy)
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], 1e-3)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(rng.standard_normal((64, width), np.float32))
    labels = amp.to_native(rng.integers(0, width, 64).astype(np.int32))

    def step():
        loss = amp.backward(lambda: harness.cross_entropy(model(x), labels), optimizer)
        amp.step(optimizer)
        return loss

    step = amp.compile(step) if compiled else step

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        amp.to_numpy(loss)
        return (time.perf_counter() - start) / steps

    return run


def followed(folder: Path, make: Callable[[], Callable[[int], float]], every: int) -> Callable[[int], float]:
    """Return a loop whose session takes part in a measured run that reads its losses every so many steps."""
    RunRequest("steps", tuple(range(every, every * 4000, every)), command=os.getpid()).write(folder)
    os.environ[VARIABLE] = str(folder)
    try:
        return make()
    finally:
        del os.environ[VARIABLE]


def calls_of(run: Callable[[int], float], steps: int = 20) -> float:
    """Return the calls of Python functions, built-in ones included, in one step."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run(steps)
    finally:
        sys.setprofile(None)
    return count / steps


def measure(backend: str, policy: str, width: int, rounds: int, compiled: bool) -> dict[str, float]:
    """Return the figures of one combination."""
    with tempfile.TemporaryDirectory() as folder:
        alone = loop_of(backend, policy, width, compiled)
        alone(20)
        steps = max(50, round(0.4 / alone(20)))  # as long a turn as a comparison's: half a second of steps
        measured = followed(Path(folder), lambda: loop_of(backend, policy, width, compiled), every=steps)
        measured(20)
        loops = {"alone": alone, "measured": measured}
        times = interleave({name: lambda run=run: run(steps) for name, run in loops.items()}, rounds)
        cost = ratio(times["measured"], times["alone"])
        calls = {name: calls_of(run) for name, run in loops.items()}
    return {
        "ratio": round(cost.value, 4), "low": round(cost.low, 4), "high": round(cost.high, 4),
        "ms_per_step": round(1e3 * median(times["alone"]), 3),
        "added_calls": round(calls["measured"] - calls["alone"], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--policy", default="float32")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    found = measure(given.backend, given.policy, given.width, given.rounds, given.compiled)
    print(json.dumps({**vars(given), **found}))


if __name__ == "__main__":
    main()
