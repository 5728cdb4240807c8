"""What the layer costs: its loop against a hand-written native one, same framework, model, policy and batch.

`python benchmarks/overhead.py [torch] [tensorflow] [mxnet]` measures each in a process of its own, prints a table and
writes `benchmarks/results/overhead-<backend>.json`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import cli
from recipes import RECIPES, Parts, layered
from turns import Comparison, Loop, compare, hardware, write

import unifiedamp as ua

RECIPE_NAMES = ("conv 28x28", "conv 8x8", "mlp 3x256")
SCALES = {"none": "none", "dynamic": ua.DynamicLossScale()}
FORMS = ("compiled", "eager")


def measure(backend: str, recipe: str, scale: str, form: str, pairs: int) -> Comparison:
    """Measure one row."""
    amp = ua.Amp(backend, "mixed_bfloat16", loss_scale=SCALES[scale])
    native = importlib.import_module(f"native.{backend}_amp")
    native.begin()
    parts = Parts(backend, RECIPES[recipe])
    ours = layered(amp, parts, form == "compiled")
    with native.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
        step = native.train_step(model, optimizer, parts.loss_fn, scale == "dynamic", form == "compiled")
    x, y = native.tensor(parts.images), native.tensor(parts.labels)
    theirs = Loop(lambda: step(x, y), native.finish, native.around)
    labels = {"recipe": recipe, "batch": str(parts.recipe.batch), "loss scale": scale, "form": form}
    result = compare(labels, Loop(ours, native.finish), theirs, pairs)
    amp.close()
    return result


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every row asked for and write the results."""
    before = hardware()
    wanted = itertools.product(options.recipes, options.scales, options.forms)
    rows = [measure(backend, *row, options.pairs) for row in wanted]
    title = f"{backend}: unifiedamp over native, mixed_bfloat16"
    write(path, title, ("unifiedamp", "native"), before, rows)


if __name__ == "__main__":
    parser = cli.parser(__doc__, 200, RECIPE_NAMES, RECIPE_NAMES)
    parser.add_argument("--scales", nargs="+", default=tuple(SCALES), choices=tuple(SCALES), help="which loss scales")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS, help="which forms")
    sys.exit(cli.run(parser, __file__, "overhead", measure_all))
