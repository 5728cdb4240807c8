"""Overhead of unifiedamp: its loop compared with a hand-written one, same framework, model, policy and batch.

`python benchmarks/overhead.py [torch] [tensorflow] [mxnet]` measures each framework in a separate process, prints a
table and writes `benchmarks/results/overhead-<backend>.json` (`-gpu` on a GPU, where the policy is `mixed_float16`).
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import cli
from recipes import GPU_RECIPES, RECIPES, Parts, find, layered
from timing import Comparison, Loop, compare, hardware, say, write

import unifiedamp as ua

RECIPE_NAMES = ("conv 28x28", "conv 8x8", "mlp 3x256")
SCALES = ("none", "dynamic")
FORMS = {"compiled": "default", "eager": "off"}
OPTIMIZERS = {"torch": ("fused", "foreach")}
"""torch's GPU optimizers have two implementations, which unifiedamp handles differently."""


def measure(backend: str, row: dict[str, str], options: Any) -> Comparison:
    """Measure one row."""
    native = cli.native_of(backend)
    native.begin()
    native.clear()
    scale, form = row["loss scale"], row["form"]
    parts = Parts(backend, find(row["recipe"], options.smoke), row.get("optimizer", "fused"))
    first = parts.recipe.first_scale if scale == "dynamic" else None
    ours_scale = ua.DynamicLossScale(initial_scale=first) if first else "none"
    amp = ua.Amp(backend, native.low(), loss_scale=ours_scale, compile=FORMS[form])
    ours = layered(amp, parts)
    with native.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
        step = native.train_step(model, optimizer, parts.loss_fn, first, form == "compiled")
    x, y = native.tensor(parts.images), native.tensor(parts.labels)
    theirs = Loop(lambda: step(x, y), native.finish, native.around)
    labels = {"recipe": row["recipe"], "batch": str(parts.recipe.batch), **row}
    turn = cli.turn_seconds(native)
    result = compare(labels, Loop(ours, native.finish), theirs, options.pairs, options.seconds, turn)
    amp.close()
    say(f"{', '.join(labels.values())}: {result.ratio:.3f} ({result.low:.3f}-{result.high:.3f})")
    return result


def wanted(backend: str, options: Any, gpu: bool) -> list[dict[str, str]]:
    """Return the labels of the rows: on a GPU a dynamic loss scale, eager, and each optimizer implementation."""
    names: dict[str, Any] = {
        "recipe": options.recipes or ([*GPU_RECIPES] if gpu and backend == "torch" else [*RECIPE_NAMES]),
        "loss scale": options.scales or (["dynamic"] if gpu else [*SCALES]),
        "form": options.forms or (["eager"] if gpu and backend == "torch" else [*FORMS]),
    }
    if gpu and backend in OPTIMIZERS:
        names["optimizer"] = options.optimizers or OPTIMIZERS[backend]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*names.values())]


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested row; write the results after each."""
    native = cli.native_of(backend)
    before = hardware(native.gpu())
    title = f"{backend}: unifiedamp over native, {native.low()}{', ' + before['gpu']['name'] if native.gpu() else ''}"
    rows: list[Comparison] = []
    for row in wanted(backend, options, bool(native.gpu())):
        rows.append(measure(backend, row, options))
        write(path, title, ("unifiedamp", "native"), before, rows)


if __name__ == "__main__":
    parser = cli.parser(__doc__, 200, None, tuple(RECIPES))
    parser.add_argument("--scales", nargs="+", choices=tuple(SCALES), help="loss scales to measure")
    parser.add_argument("--forms", nargs="+", choices=tuple(FORMS), help="forms to measure")
    parser.add_argument("--optimizers", nargs="+", choices=("fused", "foreach"), help="torch on a GPU only")
    sys.exit(cli.run(parser, __file__, "overhead", measure_all))
