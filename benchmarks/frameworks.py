"""What a user meets: each framework alone, at its best, and the layer's three forms, held against float32.

`python benchmarks/frameworks.py [torch] [tensorflow] [mxnet]` runs each configuration in a process of its own; they
take turns, so that a ratio is of one run. It prints a table and writes `benchmarks/results/frameworks-<backend>.json`
(`-gpu` on a GPU). ``setups/`` says what each configuration is.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cli
from race import Limits, Race, Standing, failure
from recipes import GPU_RECIPES, RECIPES, Parts, Recipe, find, layered
from remote import Remote, RemoteError
from setups import Setup
from turns import Loop, hardware, say, write_race

import unifiedamp as ua

CPU_RECIPES = ("wide mlp 3x2048", "conv 28x28")
DEFAULTS = {"torch": GPU_RECIPES, "tensorflow": ("ResNet-50 224",), "mxnet": CPU_RECIPES}


def build(backend: str, recipe: Recipe, setup: Setup) -> tuple[Loop, Any]:
    """Return the loop of a configuration, in its own process."""
    native = cli.native_of(backend)
    if not setup.ours:
        parts = Parts(backend, recipe)
        return importlib.import_module(f"setups.{backend}_setups").build(parts, setup), native
    config = {"backend": backend, "policy": setup.policy, "compile": setup.compiled}
    return Loop(layered(ua.Amp.from_config(config), Parts(backend, recipe)), native.finish), native


def measure(backend: str, name: str, options: Any, limits: Limits) -> Any:
    """Yield the row of each configuration of one recipe."""
    recipe = find(name, options.smoke)
    setups = importlib.import_module(f"setups.{backend}_setups").setups(recipe)
    race = Race(recipe.unit, recipe.per_step, limits)
    stayed: list[Remote] = []
    try:
        for key, setup in setups.items():
            if options.configurations and key not in options.configurations:
                continue
            labels = {"recipe": name, "batch": str(recipe.batch), "configuration": key, "by": setup.how}
            yield _one(race, stayed, labels, (backend, recipe, setup), options.patience)
    finally:
        for remote in stayed:
            remote.close()


def _one(
    race: Race, stayed: list[Remote], labels: dict[str, str], task: tuple[Any, ...], patience: float
) -> Standing:
    setup = task[-1]
    say(f"{', '.join(labels.values())}: building")
    try:
        remote = Remote(build, task, patience)
    except RemoteError as error:
        return failure(labels, str(error))
    stayed.append(remote)
    try:
        return race.enter(labels, labels["configuration"], remote.ready, setup.stays)
    except RemoteError as error:
        race.drop(error.remote)
        who = "" if error.remote is remote else "one that it is held against: "
        return failure(labels, f"{who}{error}")
    finally:
        if not setup.stays:
            stayed.remove(remote)
            remote.close()


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every recipe asked for and write the results after each configuration."""
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
    parser.add_argument("--configurations", nargs="+", help="which of setups/ (default: all)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one to build, compile and warm up")
    sys.exit(cli.run(parser, __file__, "frameworks", measure_all))
