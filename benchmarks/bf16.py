"""What mixed_bfloat16 gains over float32 in step time, on a recipe large enough for arithmetic to count.

`python benchmarks/bf16.py [torch] [tensorflow] [mxnet]` measures each in a process of its own, prints a table and
writes `benchmarks/results/bf16-<backend>.json`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cli
from recipes import RECIPES, Parts, layered
from turns import Comparison, Loop, compare, hardware, write

import unifiedamp as ua

RECIPE_NAMES = ("wide mlp 3x2048", "conv 28x28")


def measure(backend: str, recipe: str, pairs: int) -> Comparison:
    """Measure one row."""
    loops = []
    for policy in ("mixed_bfloat16", "float32"):
        amp = ua.Amp(backend, policy)
        parts = Parts(backend, RECIPES[recipe])
        finish = importlib.import_module(f"native.{backend}_amp").finish
        loops.append(Loop(layered(amp, parts, compiled=True), finish))
    return compare({"recipe": recipe, "batch": str(RECIPES[recipe].batch), "form": "compiled"}, *loops, pairs)


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every recipe asked for and write the results."""
    before = hardware()
    rows = [measure(backend, recipe, options.pairs) for recipe in options.recipes]
    title = f"{backend}: step time, mixed_bfloat16 over float32"
    write(path, title, ("mixed_bfloat16", "float32"), before, rows)


if __name__ == "__main__":
    sys.exit(cli.run(cli.parser(__doc__, 100, RECIPE_NAMES, tuple(RECIPES)), __file__, "bf16", measure_all))
