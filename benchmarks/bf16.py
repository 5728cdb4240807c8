"""Step time under mixed_bfloat16 compared with float32, on a recipe large enough for arithmetic to dominate.

`python benchmarks/bf16.py [torch] [tensorflow] [mxnet]` measures each framework in a separate process, prints a table
and writes `benchmarks/results/bf16-<backend>.json`. Both sides use unifiedamp's loop and differ only in the policy;
`frameworks.py` compares with the framework's own float32.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cli
from recipes import RECIPES, Parts, find, layered
from timing import Comparison, Loop, compare, hardware, say, write

import unifiedamp as ua

RECIPE_NAMES = ("wide mlp 3x2048", "conv 28x28")


def measure(backend: str, recipe: str, options: Any) -> Comparison:
    """Measure one row."""
    native = cli.native_of(backend)
    parts = Parts(backend, find(recipe, options.smoke))
    loops = [Loop(layered(ua.Amp(backend, policy), parts), native.finish) for policy in ("mixed_bfloat16", "float32")]
    labels = {"recipe": recipe, "batch": str(parts.recipe.batch), "form": "compiled"}
    result = compare(labels, *loops, options.pairs, options.seconds, cli.turn_seconds(native))
    say(f"{recipe}: {result.ratio:.3f}")
    return result


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested recipe; write the results after each."""
    before = hardware(cli.native_of(backend).gpu())
    title = f"{backend}: step time, mixed_bfloat16 over float32"
    rows: list[Comparison] = []
    for recipe in options.recipes:
        rows.append(measure(backend, recipe, options))
        write(path, title, ("mixed_bfloat16", "float32"), before, rows)


if __name__ == "__main__":
    sys.exit(cli.run(cli.parser(__doc__, 100, RECIPE_NAMES, tuple(RECIPES)), __file__, "bf16", measure_all))
