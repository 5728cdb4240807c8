"""Speedup: each framework alone, at its best, and unifiedamp's forms, compared with float32.

`python benchmarks/frameworks.py [torch] [tensorflow] [mxnet]` runs each configuration in a separate process; they
alternate, so that every ratio is of one run. It prints a table and writes
`benchmarks/results/frameworks-<backend>.json` (`-gpu` on a GPU). ``setups/`` defines the configurations.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cli
from race import Limits, Race, Ready, Standing, failure
from recipes import GPU_RECIPES, RECIPES, Parts, Recipe, find, layered
from remote import Remote, RemoteError
from setups import Setup
from timing import Loop, hardware, say, write_race

import unifiedamp as ua

CPU_RECIPES = ("wide mlp 3x2048", "conv 28x28")
DEFAULTS = {"torch": GPU_RECIPES, "tensorflow": ("ResNet-50 224",), "mxnet": CPU_RECIPES}


def build(backend: str, recipe: Recipe, setup: Setup) -> tuple[Loop, Any]:
    """Return the loop of a configuration; called in its process."""
    native = cli.native_of(backend)
    if not setup.ours:
        parts = Parts(backend, recipe)
        return importlib.import_module(f"setups.{backend}_setups").build(parts, setup), native
    scale = recipe.loss_scale(str(setup.policy))
    amp = ua.Amp(backend, setup.policy, loss_scale=scale, compile=str(setup.compiled), tuning=setup.tuning)
    return Loop(layered(amp, Parts(backend, recipe)), native.finish), native


def measure(backend: str, name: str, options: Any, limits: Limits) -> Iterator[Standing]:
    """Yield the row of each configuration of one recipe, built ``--jobs`` at a time, measured one by one."""
    recipe = find(name, options.smoke)
    found = importlib.import_module(f"setups.{backend}_setups").setups(recipe)
    setups = {key: setup for key, setup in found.items() if key in (options.configurations or found)}
    race = Race(recipe.unit, recipe.per_step, limits)
    remotes: list[Remote] = []
    try:
        for some in _batches(setups, options.jobs):
            say(f"{name}: building {', '.join(some)}")
            begun = {key: Remote(build, (backend, recipe, setups[key]), options.patience) for key in some}
            remotes += begun.values()
            warm = {key: _ready(remote) for key, remote in begun.items()}
            for key in some:
                labels = {"recipe": name, "batch": str(recipe.batch), "configuration": key, "by": setups[key].how}
                yield _enter(race, labels, warm[key], setups[key].stays)
                if not setups[key].stays:
                    begun[key].close()
    finally:
        for remote in remotes:
            remote.close()


def _batches(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = list(names)
    while left:
        yield left[:size]
        left = left[size:]


def _ready(remote: Remote) -> Ready | RemoteError:
    try:
        return remote.ready()
    except RemoteError as error:
        return error


def _enter(race: Race, labels: dict[str, str], ready: Ready | RemoteError, stays: bool) -> Standing:
    if isinstance(ready, RemoteError):
        return failure(labels, str(ready))
    try:
        return race.enter(labels, labels["configuration"], ready, stays)
    except RemoteError as error:
        race.drop(error.remote)
        who = "" if error.remote is ready.loop else "one that it is held against: "
        return failure(labels, f"{who}{error}")


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested recipe; write the results after each configuration."""
    native = cli.native_of(backend)
    before = hardware(native.gpu())
    limits = Limits(options.pairs, options.seconds, cli.turn_seconds(native))
    title = f"{backend}: the framework alone and with the layer, {native.low()}, {_where(before)}"
    rows: list[Standing] = []
    for name in options.recipes or (DEFAULTS[backend] if native.gpu() else CPU_RECIPES):
        for row in measure(backend, name, options, limits):
            rows.append(row)
            against = dict.fromkeys(key for each in rows for key in each.ratios)
            write_race(path, title, list(against), "speed", before, rows)


def _where(before: Any) -> str:
    return before["gpu"]["name"] if "gpu" in before else "CPU"


if __name__ == "__main__":
    parser = cli.parser(__doc__, 30, None, tuple(RECIPES))
    parser.add_argument("--configurations", nargs="+", help="names from setups/ (default: all)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to build, compile and warm up one")
    parser.add_argument("--jobs", type=int, default=1, help="configurations to build at a time (default: 1)")
    sys.exit(cli.run(parser, __file__, "frameworks", measure_all))
